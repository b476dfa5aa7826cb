"""A history of a PostgreSQL database in moments: every kind of column that its users have, toasted or not.

`vector` is pgvector's type by name and text form, made with PostgreSQL's own functions: Debezium goes by the name.
There are two tables. Of an unchanged toasted value of most arrays Debezium 3.6 writes NULL (it says so in its own log):
columns of those types are in `vectors`, which has REPLICA IDENTITY FULL, and `items` has all others.
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
  codes uuid[],
  born_on date[]
) WITH (toast_tuple_target = 128);
CREATE TABLE vectors (
  id int PRIMARY KEY,
  title text,
  body text,
  smalls smallint[],
  reals real[],
  doubles double precision[],
  flags boolean[],
  made_at timestamp[],
  seen_at timestamptz[],
  prices numeric(12,2)[],
  embedding vector
) WITH (toast_tuple_target = 128);
ALTER TABLE vectors REPLICA IDENTITY FULL;
DO $$ DECLARE col record; BEGIN
  FOR col IN SELECT attrelid::regclass AS owner, attname FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid IN ('items'::regclass, 'vectors'::regclass) AND attnum > 0 AND typlen = -1
    AND attname NOT IN ('title', 'price', 'any_number')
  LOOP EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STORAGE EXTERNAL', col.owner, col.attname); END LOOP;
END $$;
CREATE TABLE zz_moments (id int PRIMARY KEY);
CREATE PUBLICATION changes FOR ALL TABLES;
"""

ITEMS = """
INSERT INTO items SELECT n, 'title ' || n, repeat(md5(n::text), 20), decode(repeat(md5(n::text), 4), 'hex'),
  jsonb_build_object('n', n, 'list', jsonb_build_array(1.5, 2, 'x'), 'pad', repeat('p', 50)),
  hstore(ARRAY['colour', 'size', 'pad'], ARRAY['red', NULL, repeat('h', 50)]),
  n + 0.25, 12345678901234567890.123456789 + n, n + 0.5, n / 3.0, 9007199254740993 + n, n, n % 2 = 0,
  md5(n::text)::uuid, 'ok', date '1969-12-28' + n, time '23:59:59.123456', timetz '12:34:56.5+02',
  timestamp '2024-02-29 12:00:00.000001' + n * interval '1 day',
  timestamptz '1969-12-31 23:59:59.999999+00' + n * interval '1 hour',
  (SELECT array_agg('word ' || n || ' ' || i) FROM generate_series(1, 12) i) || ARRAY[NULL, '"quoted", {{x}}'],
  (SELECT array_agg(jsonb_build_object('i', i, 'v', i / 2.0)) FROM generate_series(1, 8) i),
  (SELECT array_agg(i * n) FROM generate_series(1, 40) i) || ARRAY[NULL::int],
  (SELECT array_agg(9007199254740993::bigint + i) FROM generate_series(1, 20) i),
  (SELECT array_agg(md5(i::text)::uuid) FROM generate_series(1, 10) i),
  (SELECT array_agg(date '2000-01-01' + i) FROM generate_series(1, 40) i)
FROM generate_series({first}, {last}) n;
"""
VECTORS = """
INSERT INTO vectors SELECT n, 'title ' || n, repeat(md5(n::text), 50),
  (SELECT array_agg(i::smallint) FROM generate_series(1, 60) i),
  (SELECT array_agg(i::real) FROM generate_series(1, 30) i) || ARRAY[0.1::real, NULL],
  (SELECT array_agg(i / 8.0::double precision) FROM generate_series(1, 20) i),
  (SELECT array_agg(i % 2 = 0) FROM generate_series(1, 60) i),
  (SELECT array_agg(timestamp '2000-01-01 00:00:00.25' + i * interval '1 hour') FROM generate_series(1, 15) i),
  (SELECT array_agg(timestamptz '2000-01-01 00:00:00.25+02' + i * interval '1 hour') FROM generate_series(1, 15) i),
  (SELECT array_agg((i / 4.0)::numeric(12,2)) FROM generate_series(1, 20) i),
  ('[' || (SELECT string_agg((i * n)::text || '.5', ',') FROM generate_series(1, 32) i) || ']')::vector
FROM generate_series({first}, {last}) n;
"""

MOMENTS = (
    # Before the connector starts: a snapshot's reads.
    ITEMS.format(first=1, last=4)
    + VECTORS.format(first=1, last=3)
    + "INSERT INTO items (id, title) VALUES (100, 'nothing else');",
    # Toasted values that do not change, one at a time and all; rows that come, go, and come back.
    ITEMS.format(first=5, last=6)
    + VECTORS.format(first=4, last=4)
    + """
UPDATE items SET title = 'renamed 1' WHERE id = 1;
UPDATE items SET ints = ARRAY[1, 2, 3], price = -0.01 WHERE id = 2;
UPDATE items SET body = NULL, raw = '\\x00ff', texts = '{}' WHERE id = 3;
DELETE FROM items WHERE id = 4;
INSERT INTO items (id, title, f4, f8) VALUES (4, 'back', 'NaN', '-Infinity');
UPDATE vectors SET title = 'renamed 1' WHERE id = 1;
UPDATE vectors SET embedding = '[1,2.5,-3e-05]', reals = NULL, doubles = '{NaN,-Infinity,1}' WHERE id = 2;
DELETE FROM vectors WHERE id = 3;
""",
    # Keys that change: of a short row, and of rows whose toasted values are not sent again.
    """
UPDATE items SET id = 101 WHERE id = 100;
UPDATE items SET id = 51 WHERE id = 5;
UPDATE items SET id = 61, title = 'moved and renamed' WHERE id = 6;
UPDATE items SET title = 'renamed after the move' WHERE id = 51;
UPDATE vectors SET id = 41 WHERE id = 4;
BEGIN;
UPDATE items SET title = 'a' WHERE id = 1;
UPDATE items SET title = 'b' WHERE id = 1;
DELETE FROM items WHERE id = 2;
COMMIT;
"""
    + ITEMS.format(first=8, last=8)
    + "UPDATE items SET ints = ARRAY[7] WHERE id = 8; UPDATE items SET id = 9 WHERE id = 8;"
    + "UPDATE items SET id = 10, flag = NULL WHERE id = 9;",
    # A truncation, and rows after it.
    "TRUNCATE items;" + ITEMS.format(first=1, last=1) + "UPDATE items SET feeling = 'happy' WHERE id = 1;",
)
TABLES = ("items", "vectors")
NO_TIMES = (
    "INSERT INTO items (id, born, made, seen, any_number) VALUES (7, 'infinity', '-infinity', 'infinity', 'NaN');"
)
"""Values that no type of Arrow has: such a row is quarantined."""
