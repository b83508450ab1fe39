-- The exclusive split of steps: each instant goes to the first layer that is open on the rank, in the order
-- compute, kernel, libfabric, proxy, ring, nic, rx, poll, idle. The same figures as `method exclusive` of attribute.

-- The operation of each slice that a flow leads through: a flow joins the slices of one operation.
CREATE OR REPLACE PERFETTO TABLE efaprof_flows AS
SELECT slice_out AS id, trace_id AS operation FROM flow
UNION
SELECT slice_in, trace_id FROM flow;

CREATE OR REPLACE PERFETTO INDEX efaprof_flows_id ON efaprof_flows(id);

-- When each operation was seen by its receiver.
CREATE OR REPLACE PERFETTO TABLE efaprof_arrivals AS
SELECT f.operation, MIN(r.ts) AS arrival_ts
FROM efaprof_stages AS r
JOIN efaprof_flows AS f USING (id)
WHERE r.line = 'rx'
GROUP BY f.operation;

CREATE OR REPLACE PERFETTO INDEX efaprof_arrivals_operation ON efaprof_arrivals(operation);

-- Where a fence held an operation.
CREATE OR REPLACE PERFETTO TABLE efaprof_fences AS
SELECT upid, proxy, ts, seq, end_ts FROM efaprof_stages WHERE line = 'fence';

CREATE OR REPLACE PERFETTO INDEX efaprof_fences_ts ON efaprof_fences(ts);

-- One row per stretch in which a layer had something open on a rank.
CREATE OR REPLACE PERFETTO TABLE efaprof_open AS
SELECT upid, 'compute' AS layer, 1 AS place, ts, end_ts FROM efaprof_stages WHERE line = 'compute'
UNION ALL
-- The wait for a fence is no part of the stage that it lies in.
SELECT s.upid, s.line, IIF(s.line = 'kernel', 2, 4), COALESCE(f.end_ts, s.ts), s.end_ts
FROM efaprof_stages AS s
LEFT JOIN efaprof_fences AS f ON f.upid = s.upid AND f.proxy = s.proxy AND f.ts = s.ts AND f.seq = s.seq
WHERE s.line IN ('kernel', 'proxy')
UNION ALL
SELECT upid, 'libfabric', 3, ts, end_ts FROM efaprof_stages WHERE line = 'libfabric'
UNION ALL
SELECT upid, 'proxy', 4, ts, end_ts FROM efaprof_stages WHERE line = 'told'
UNION ALL
SELECT upid, 'ring', 5, ts, end_ts FROM efaprof_stages WHERE line = 'ring'
UNION ALL
-- Until it was seen by the receiver, else completed; a flush waits for both of combine's puts.
SELECT
  n.upid,
  'nic',
  6,
  n.ts,
  IIF(n.name = 'combine put', MAX(COALESCE(a.arrival_ts, n.end_ts), COALESCE(n.end_ts, a.arrival_ts)),
    COALESCE(a.arrival_ts, n.end_ts))
FROM efaprof_stages AS n
LEFT JOIN efaprof_flows AS f ON f.id = n.id
LEFT JOIN efaprof_arrivals AS a ON a.operation = f.operation
WHERE n.line = 'nic'
UNION ALL
SELECT upid, 'rx', 7, ts, end_ts FROM efaprof_stages WHERE line = 'rx'
UNION ALL
SELECT upid, 'poll', 8, ts, end_ts FROM efaprof_stages WHERE line = 'waits';

-- One row per rank, step and layer: ns of the step that are this layer's alone. They sum to the step's dur.
CREATE OR REPLACE PERFETTO TABLE efaprof_step_layers AS
WITH
  edges AS (
    SELECT upid, ts, place, 1 AS change, NULL AS step_ts, NULL AS step_end FROM efaprof_open WHERE end_ts > ts
    UNION ALL
    SELECT upid, end_ts, place, -1, NULL, NULL FROM efaprof_open WHERE end_ts > ts
    UNION ALL
    SELECT upid, ts, 0, 0, ts, end_ts FROM efaprof_path_steps
    UNION ALL
    SELECT upid, end_ts, 0, 0, NULL, NULL FROM efaprof_path_steps
  ),
  instants AS (
    SELECT
      upid,
      ts,
      MAX(step_ts) AS step_ts,
      MAX(step_end) AS step_end,
      SUM(IIF(place = 1, change, 0)) AS c1,
      SUM(IIF(place = 2, change, 0)) AS c2,
      SUM(IIF(place = 3, change, 0)) AS c3,
      SUM(IIF(place = 4, change, 0)) AS c4,
      SUM(IIF(place = 5, change, 0)) AS c5,
      SUM(IIF(place = 6, change, 0)) AS c6,
      SUM(IIF(place = 7, change, 0)) AS c7,
      SUM(IIF(place = 8, change, 0)) AS c8
    FROM edges
    GROUP BY upid, ts
  ),
  levels AS (
    SELECT
      upid,
      ts,
      LEAD(ts) OVER so_far AS next_ts,
      MAX(step_ts) OVER so_far AS step_ts,
      MAX(step_end) OVER so_far AS step_end,
      SUM(c1) OVER so_far AS n1,
      SUM(c2) OVER so_far AS n2,
      SUM(c3) OVER so_far AS n3,
      SUM(c4) OVER so_far AS n4,
      SUM(c5) OVER so_far AS n5,
      SUM(c6) OVER so_far AS n6,
      SUM(c7) OVER so_far AS n7,
      SUM(c8) OVER so_far AS n8
    FROM instants
    WINDOW so_far AS (PARTITION BY upid ORDER BY ts)
  ),
  pieces AS (
    SELECT
      upid,
      ts,
      step_ts,
      next_ts - ts AS ns,
      CASE
        WHEN n1 > 0 THEN 'compute'
        WHEN n2 > 0 THEN 'kernel'
        WHEN n3 > 0 THEN 'libfabric'
        WHEN n4 > 0 THEN 'proxy'
        WHEN n5 > 0 THEN 'ring'
        WHEN n6 > 0 THEN 'nic'
        WHEN n7 > 0 THEN 'rx'
        WHEN n8 > 0 THEN 'poll'
        ELSE 'idle'
      END AS layer
    FROM levels
    WHERE next_ts IS NOT NULL AND ts < step_end
  )
SELECT s.upid, s.rank, s.step, s.kind, p.layer, p.ns
FROM (SELECT upid, step_ts, layer, SUM(ns) AS ns FROM pieces GROUP BY upid, step_ts, layer) AS p
JOIN efaprof_path_steps AS s ON s.upid = p.upid AND s.ts = p.step_ts;

-- One row per layer: mean over the decode steps that every rank finished, and over the ranks.
CREATE OR REPLACE PERFETTO VIEW efaprof_layers AS
WITH
  whole AS (
    SELECT step
    FROM efaprof_path_steps
    WHERE kind = 'decode'
    GROUP BY step
    HAVING COUNT() = (SELECT COUNT(DISTINCT upid) FROM efaprof_path_steps WHERE kind = 'decode')
  ),
  kept AS (
    SELECT layer, ns FROM efaprof_step_layers WHERE kind = 'decode' AND step IN (SELECT step FROM whole)
  )
SELECT
  layer,
  SUM(ns) / 1e3 / (SELECT COUNT() FROM efaprof_path_steps WHERE kind = 'decode' AND step IN (SELECT step FROM whole))
    AS us_per_step,
  1.0 * SUM(ns) / (SELECT SUM(ns) FROM kept) AS share
FROM kept
GROUP BY layer
ORDER BY us_per_step DESC;

-- The longest decode steps, the worst first.
CREATE OR REPLACE PERFETTO VIEW efaprof_worst_steps AS
SELECT id, upid, rank, step, ts, dur FROM efaprof_steps WHERE kind IN ('decode', 'step') ORDER BY dur DESC, step, rank LIMIT 20;
