// Which tables of an object are patched.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdint.h>

namespace efaprof::ofi {

// enum efaprof_object_what of an object, 0 for classes that are not recorded.
uint32_t kind_of(const fid *object);

// Each takes the registry's lock, patches what the object has now, and then looks again at every live completion
// queue, whose table a provider may have exchanged meanwhile.
void adopt_fabric(fid_fabric *fabric);
void adopt_domain(fid_domain *domain);
void adopt_ep(fid_ep *ep);
void adopt_cq(fid_cq *cq);
void adopt_cntr(fid_cntr *cntr);
void adopt_av(fid_av *av);
void adopt_other(fid *object); // only its close, bind and control

// One patcher a type of table, beside its hooks. With the registry's lock held.
void patch(const fi_ops *table);
bool closes_are_seen(const fi_ops *table);
void patch(const fi_ops_fabric *table);
void patch(const fi_ops_domain *table);
void patch(const fi_ops_mr *table);
void patch(const fi_ops_ep *table);
void patch(const fi_ops_av *table);
void patch(const fi_ops_rma *table);
void patch(const fi_ops_msg *table);
void patch(const fi_ops_tagged *table);
void patch(const fi_ops_atomic *table);
void patch(const fi_ops_cq *table);
void patch(const fi_ops_cntr *table);

} // namespace efaprof::ofi
