"""A history of a PostgreSQL database in moments: every kind of column that its users have, toasted or not.

`vector` is pgvector's type by name and text form, made with PostgreSQL's own functions: Debezium goes by the name.
"""

from __future__ import annotations

SETUP = """
CREATE EXTENSION hstore;
CREATE TYPE vector;
CREATE FUNCTION vector_in(cstring) RETURNS vector AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION vector_out(vector) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE vector (INPUT = vector_in, OUTPUT = vector_out, INTERNALLENGTH = VARIABLE, STORAGE = external);
CREATE CAST (text AS vector) WITHOUT FUNCTION;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE items (
  id int PRIMARY KEY,
  title varchar(40),
  body text,
  raw bytea,
  doc jsonb,
  attrs hstore,
  price numeric(12,2),
  any_number numeric,
  f4 real,
  f8 double precision,
  big bigint,
  small smallint,
  flag boolean,
  code uuid,
  feeling mood,
  born date,
  at_time time,
  at_timetz timetz,
  made timestamp,
  seen timestamptz,
  texts text[],
  docs jsonb[],
  ints int[],
  bigs bigint[],
  smalls smallint[],
  reals real[],
  doubles double precision[],
  flags boolean[],
  codes uuid[],
  born_on date[],
  made_at timestamp[],
  seen_at timestamptz[],
  prices numeric(12,2)[],
  embedding vector
) WITH (toast_tuple_target = 128);
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT attname FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = 'items'::regclass AND attnum > 0 AND typlen = -1 AND attname NOT IN ('title', 'price', 'any_number')
  LOOP EXECUTE format('ALTER TABLE items ALTER COLUMN %I SET STORAGE EXTERNAL', name); END LOOP;
END $$;
CREATE TABLE moments (id int PRIMARY KEY);
CREATE PUBLICATION changes FOR ALL TABLES;
"""

ROW = """
INSERT INTO items SELECT n, 'title ' || n, repeat(md5(n::text), 70), decode(repeat(md5(n::text), 4), 'hex'),
  jsonb_build_object('n', n, 'list', jsonb_build_array(1.5, 2, 'x'), 'pad', repeat('p', 200)),
  hstore(ARRAY['colour', 'size', 'pad'], ARRAY['red', NULL, repeat('h', 200)]),
  n + 0.25, 12345678901234567890.123456789 + n, n + 0.5, n / 3.0, 9007199254740993 + n, n, n % 2 = 0,
  md5(n::text)::uuid, 'ok', date '1969-12-28' + n, time '23:59:59.123456', timetz '12:34:56.5+02',
  timestamp '2024-02-29 12:00:00.000001' + n * interval '1 day', timestamptz '1969-12-31 23:59:59.999999+00' + n * interval '1 hour',
  (SELECT array_agg('word ' || n || ' ' || i) FROM generate_series(1, 30) i) || ARRAY[NULL, '"quoted", {{x}}'],
  (SELECT array_agg(jsonb_build_object('i', i, 'v', i / 2.0)) FROM generate_series(1, 15) i),
  (SELECT array_agg(i * n) FROM generate_series(1, 60) i) || ARRAY[NULL::int],
  (SELECT array_agg(9007199254740993::bigint + i) FROM generate_series(1, 30) i),
  (SELECT array_agg(i::smallint) FROM generate_series(1, 100) i),
  (SELECT array_agg(i::real) FROM generate_series(1, 60) i) || ARRAY[0.1::real, NULL],
  (SELECT array_agg(i / 8.0::double precision) FROM generate_series(1, 30) i),
  (SELECT array_agg(i % 2 = 0) FROM generate_series(1, 200) i),
  (SELECT array_agg(md5(i::text)::uuid) FROM generate_series(1, 15) i),
  (SELECT array_agg(date '2000-01-01' + i) FROM generate_series(1, 60) i),
  (SELECT array_agg(timestamp '2000-01-01 00:00:00.25' + i * interval '1 hour') FROM generate_series(1, 30) i),
  (SELECT array_agg(timestamptz '2000-01-01 00:00:00.25+02' + i * interval '1 hour') FROM generate_series(1, 30) i),
  (SELECT array_agg((i / 4.0)::numeric(12,2)) FROM generate_series(1, 60) i),
  ('[' || (SELECT string_agg((i * n)::text || '.5', ',') FROM generate_series(1, 60) i) || ']')::vector
FROM generate_series({first}, {last}) n;
"""

MOMENTS = (
    # Before the connector starts: a snapshot's reads.
    ROW.format(first=1, last=4) + "INSERT INTO items (id, title) VALUES (100, 'nothing else');",
    # Toasted values that do not change, one at a time and all; rows that come, go, and come back.
    ROW.format(first=5, last=6)
    + """
UPDATE items SET title = 'renamed 1' WHERE id = 1;
UPDATE items SET ints = ARRAY[1, 2, 3], price = -0.01 WHERE id = 2;
UPDATE items SET body = NULL, raw = '\\x00ff', texts = '{}', embedding = '[1,2.5,-3e-05]' WHERE id = 3;
DELETE FROM items WHERE id = 4;
INSERT INTO items (id, title, f4, f8, reals, doubles) VALUES (4, 'back', 'NaN', '-Infinity', '{NaN,Infinity,1}', '{NaN,-Infinity}');
""",
    # Keys that change: of a short row, and of one whose toasted values are not sent again; times that never end.
    """
UPDATE items SET id = 101 WHERE id = 100;
UPDATE items SET id = 51 WHERE id = 5;
UPDATE items SET id = 61, title = 'moved and renamed' WHERE id = 6;
UPDATE items SET title = 'renamed after the move' WHERE id = 51;
INSERT INTO items (id, born, made, seen, any_number, at_time) VALUES (7, 'infinity', '-infinity', 'infinity', 'NaN', '24:00');
BEGIN; UPDATE items SET title = 'a' WHERE id = 1; UPDATE items SET title = 'b' WHERE id = 1; DELETE FROM items WHERE id = 2; COMMIT;
""",
    # A truncation, and rows after it.
    "TRUNCATE items;" + ROW.format(first=1, last=1) + "UPDATE items SET feeling = 'happy' WHERE id = 1;",
)
