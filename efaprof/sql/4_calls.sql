-- libfabric calls of any recorded program, with or without a dispatch path.

-- One row per slice of a call: the call itself (line libfabric…), or its flight until the completion (nic…, rx…).
CREATE OR REPLACE PERFETTO TABLE efaprof_call_slices AS
SELECT
  s.id,
  t.upid,
  t.name AS line,
  s.name AS kind,
  s.ts,
  s.dur,
  EXTRACT_ARG(s.arg_set_id, 'debug.op') AS op,
  EXTRACT_ARG(s.arg_set_id, 'debug.bytes') AS bytes
FROM slice AS s
JOIN process_track AS t ON t.id = s.track_id
WHERE
  (t.name GLOB 'libfabric*' OR t.name GLOB 'nic*' OR t.name GLOB 'rx: posted*')
  AND EXTRACT_ARG(s.arg_set_id, 'debug.op') IS NOT NULL;

-- How long each call's operation was in flight; null where it never ended.
CREATE OR REPLACE PERFETTO TABLE efaprof_flights AS
SELECT op, upid, IIF(dur < 0, NULL, dur) AS dur
FROM efaprof_call_slices
WHERE line NOT GLOB 'libfabric*';

CREATE OR REPLACE PERFETTO INDEX efaprof_flights_op ON efaprof_flights(op);

-- One row per kind and level (a provider's calls on the one below it have a line of their own).
CREATE OR REPLACE PERFETTO VIEW efaprof_calls AS
SELECT
  p.name AS process,
  c.line,
  c.kind,
  COUNT() AS calls,
  SUM(c.bytes) AS bytes,
  SUM(c.dur) / 1e3 AS libfabric_us,
  SUM(f.dur) / 1e3 AS in_flight_us
FROM efaprof_call_slices AS c
JOIN process AS p USING (upid)
LEFT JOIN efaprof_flights AS f ON f.op = c.op AND f.upid = c.upid
WHERE c.line GLOB 'libfabric*'
GROUP BY c.upid, c.line, c.kind
ORDER BY calls DESC;
