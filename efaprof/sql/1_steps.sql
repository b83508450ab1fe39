-- Steps of a dispatch run, and the stages of its operations, from a trace that `efaprof export` wrote.
-- Run the files of this folder in order, once; then query what they made. docs/perfetto.md names it all.

-- One row per rank and step: [ts, end_ts) reaches to the begin of the next step.
CREATE OR REPLACE PERFETTO TABLE efaprof_steps AS
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

-- The lines of the path, of processes that have one: a program that only names its steps has no stages to split them.
-- A rank's further proxies have lines of their own: "ring 1" is a line ring of proxy 1.
CREATE OR REPLACE PERFETTO TABLE efaprof_lines AS
SELECT
  id AS track_id,
  upid,
  RTRIM(name, ' 123456789') AS line,
  CAST(SUBSTR(name, LENGTH(RTRIM(name, ' 123456789')) + 2) AS INT) AS proxy
FROM process_track
WHERE
  RTRIM(name, ' 123456789') IN ('kernel', 'ring', 'proxy', 'fence', 'told', 'libfabric', 'nic', 'rx', 'waits', 'compute')
  AND upid IN (SELECT upid FROM efaprof_steps)
  AND upid IN (SELECT upid FROM process_track WHERE name = 'kernel');

-- The steps that can be split.
CREATE OR REPLACE PERFETTO TABLE efaprof_path_steps AS
SELECT * FROM efaprof_steps WHERE upid IN (SELECT upid FROM efaprof_lines);

-- One row per slice on such a line; end_ts is null where it never ended, step to bytes but for kernel.
CREATE OR REPLACE PERFETTO TABLE efaprof_stages AS
SELECT
  s.id,
  l.upid,
  l.line,
  l.proxy,
  s.name,
  s.ts,
  IIF(s.dur < 0, NULL, s.ts + s.dur) AS end_ts,
  IIF(l.line IN ('kernel', 'proxy', 'fence'), EXTRACT_ARG(s.arg_set_id, 'debug.seq'), NULL) AS seq,
  IIF(l.line = 'kernel', EXTRACT_ARG(s.arg_set_id, 'debug.step'), NULL) AS step,
  IIF(l.line = 'kernel', EXTRACT_ARG(s.arg_set_id, 'debug.layer'), NULL) AS model_layer,
  IIF(l.line = 'kernel', EXTRACT_ARG(s.arg_set_id, 'debug.bytes'), NULL) AS bytes
FROM slice AS s
JOIN efaprof_lines AS l USING (track_id);
