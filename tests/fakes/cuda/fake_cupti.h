// What the fake libcupti offers a test program beside CUPTI's own functions.
#pragma once

#include <cupti.h>

#include <stdint.h>

void fake_launch_graph(uint32_t graph);
void fake_launch_kernel(const char *mangled_name);
void fake_copy_to_host(int is_blocking);
void fake_synchronize_stream(CUresult result);
void fake_synchronize_context(void);
void fake_record_event(uintptr_t event);
void fake_synchronize_event(uintptr_t event);
void fake_destroy_event(uintptr_t event);
