-- Steps of a dispatch run, and the stages of its operations, from a trace that `efaprof export` wrote.
-- Run the files of this folder in order, once; then query the views. docs/perfetto.md names them all.

-- One row per rank and step: [ts, end_ts) reaches to the begin of the next step.
CREATE OR REPLACE PERFETTO VIEW efaprof_steps AS
SELECT
  s.id,
  t.upid,
  IIF(p.name GLOB 'rank *', CAST(substr(p.name, 6) AS INT), NULL) AS rank,
  EXTRACT_ARG(s.arg_set_id, 'debug.step') AS step,
  replace(s.name, ' step', '') AS kind,
  s.ts,
  s.ts + s.dur AS end_ts,
  s.dur
FROM slice AS s
JOIN process_track AS t ON t.id = s.track_id
JOIN process AS p USING (upid)
WHERE t.name = 'steps' AND s.dur >= 0;

-- One row per slice on a line of the path, of processes that have steps; end_ts is null where it never ended.
CREATE OR REPLACE PERFETTO VIEW efaprof_stages AS
SELECT
  s.id,
  t.upid,
  t.name AS line,
  s.name,
  s.ts,
  IIF(s.dur < 0, NULL, s.ts + s.dur) AS end_ts,
  EXTRACT_ARG(s.arg_set_id, 'debug.seq') AS seq,
  s.arg_set_id
FROM slice AS s
JOIN process_track AS t ON t.id = s.track_id
WHERE
  t.name IN ('kernel', 'ring', 'proxy', 'fence', 'told', 'libfabric', 'nic', 'rx', 'waits', 'compute')
  AND t.upid IN (SELECT upid FROM efaprof_steps);
