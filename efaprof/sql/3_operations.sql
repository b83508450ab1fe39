-- Operations of a dispatch path, counted where they were issued.

-- One row per rank, step, layer of the model and kind of operation.
CREATE OR REPLACE PERFETTO TABLE efaprof_step_operations AS
SELECT s.upid, s.rank, s.step, s.kind AS step_kind, k.model_layer, k.name, k.operations, k.bytes
FROM (
  SELECT upid, step, model_layer, name, COUNT() AS operations, SUM(bytes) AS bytes
  FROM efaprof_stages
  WHERE line = 'kernel'
  GROUP BY upid, step, model_layer, name
) AS k
JOIN efaprof_path_steps AS s ON s.upid = k.upid AND s.step = k.step;

-- One row per kind over the decode steps of all ranks: put, notify, signal, barrier, with its phase before it.
CREATE OR REPLACE PERFETTO VIEW efaprof_operations AS
SELECT
  name,
  SUM(operations) AS operations,
  SUM(bytes) AS bytes,
  1.0 * SUM(operations) / (SELECT COUNT() FROM efaprof_path_steps WHERE kind = 'decode') AS per_rank_and_step
FROM efaprof_step_operations
WHERE step_kind = 'decode'
GROUP BY name
ORDER BY operations DESC, name;

-- How long one operation was in each stage of its path, over all steps.
CREATE OR REPLACE PERFETTO VIEW efaprof_stage_times AS
SELECT
  line,
  COUNT() AS operations,
  AVG(end_ts - ts) / 1e3 AS mean_us,
  PERCENTILE(end_ts - ts, 50) / 1e3 AS p50_us,
  PERCENTILE(end_ts - ts, 99) / 1e3 AS p99_us
FROM efaprof_stages
WHERE end_ts IS NOT NULL AND line NOT IN ('waits', 'compute')
GROUP BY line;
