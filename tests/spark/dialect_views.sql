SELECT s, count(*) AS n, count(i) AS k, sum(i) AS total FROM t GROUP BY s
SELECT flag, sum(m) AS m, min(m) AS low, max(w) AS high FROM t GROUP BY flag
SELECT flag AS f, avg(i) AS a, avg(d) AS b, sum(d) AS c, sum(f) AS e FROM t GROUP BY flag
SELECT avg(m) AS a FROM t
SELECT count(*) AS n, sum(i) AS s, min(day) AS d, max(at) AS x FROM t WHERE false
SELECT s, sum(i) AS x FROM t WHERE false GROUP BY s
SELECT count(DISTINCT s) AS a, count(DISTINCT i) AS b, sum(DISTINCT b) AS c FROM t
SELECT s, count(*) FILTER (WHERE i > 0) AS p, count_if(i > 0) AS q, bool_and(flag) AS r, bool_or(flag) AS o FROM t GROUP BY s
SELECT max(s) AS a, min(n) AS b, max(flag) AS c, max(f) AS d FROM t
SELECT id, s FROM t ORDER BY s, id DESC LIMIT 7
SELECT id, i FROM t ORDER BY i DESC NULLS FIRST, id LIMIT 5
SELECT id, i FROM t ORDER BY 2 DESC, 1 LIMIT 9
SELECT i % 3 AS g, sum(l) AS x FROM t GROUP BY i % 3
SELECT i % 3 AS g, sum(l) AS x FROM t GROUP BY g HAVING x > 0
SELECT i % 3 AS g, sum(l) AS x FROM t GROUP BY 1 HAVING count(*) > 2
SELECT year(day) AS y, month(day) AS m, sum(m) AS x FROM t GROUP BY year(day), month(day)
SELECT t.id, u.label FROM t JOIN u ON t.b = u.b
SELECT t.id, u.label, u.w FROM t LEFT JOIN u ON t.b = u.b AND u.w > 1
SELECT u.label, count(t.id) AS n FROM t RIGHT JOIN u ON t.b = u.b GROUP BY u.label
SELECT b, t.id, label FROM t FULL OUTER JOIN u USING (b)
SELECT b, id, label FROM t JOIN u USING (b)
SELECT id FROM t LEFT SEMI JOIN u ON t.b = u.b
SELECT id FROM t LEFT ANTI JOIN u ON t.b = u.b
SELECT id, label FROM t CROSS JOIN u WHERE t.b = u.b
SELECT id, label FROM t, u WHERE t.b <=> u.b
SELECT * FROM u
SELECT u.*, t.id FROM t JOIN u ON t.b = u.b
SELECT DISTINCT s, flag FROM t
SELECT id FROM t WHERE i > 0 UNION SELECT b FROM u
SELECT id, m FROM t UNION ALL SELECT b, w FROM u
SELECT b FROM t INTERSECT SELECT b FROM u
SELECT b FROM t EXCEPT SELECT b FROM u
SELECT x.g, max(x.n) AS top FROM (SELECT s AS g, flag, count(*) AS n FROM t GROUP BY s, flag) x GROUP BY x.g
WITH big AS (SELECT * FROM t WHERE i > 0), named AS (SELECT id, s FROM big) SELECT s, count(*) AS n FROM named GROUP BY s
SELECT id FROM t WHERE b IN (SELECT b FROM u)
SELECT id FROM t WHERE b NOT IN (SELECT b FROM u WHERE b IS NOT NULL)
SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.b = t.b AND u.w > 1)
SELECT id, (SELECT max(w) FROM u) AS top FROM t
SELECT id, i, row_number() OVER (PARTITION BY s ORDER BY i DESC, id) AS r FROM t
SELECT * FROM (SELECT id, s, row_number() OVER (PARTITION BY s ORDER BY id) AS r FROM t) WHERE r = 1
SELECT s, max_by(id, i) AS top, min_by(id, l) AS low FROM t WHERE i IS NOT NULL GROUP BY s HAVING count(DISTINCT i) = count(i)
SELECT s, sort_array(collect_list(i)) AS xs, sort_array(collect_set(b)) AS ys FROM t GROUP BY s
SELECT place.city AS city, sum(place.zip) AS z FROM t GROUP BY place.city
SELECT s, any_value(s) AS again FROM t GROUP BY s
SELECT s, stddev(d) AS x FROM t GROUP BY s
SELECT s, percentile(i, 0.5) AS x FROM t GROUP BY s
SELECT s, flag, count(*) AS n FROM t GROUP BY ROLLUP (s, flag)
SELECT id, x FROM t LATERAL VIEW explode(xs) e AS x
SELECT s AS k, date_trunc('MONTH', at) AS mo, count(*) AS n, sum(CASE WHEN flag THEN m ELSE 0 END) AS x FROM t GROUP BY s, date_trunc('MONTH', at)
SELECT CASE WHEN i > 0 THEN 'plus' ELSE 'minus' END AS kind, count(*) AS n FROM t GROUP BY CASE WHEN i > 0 THEN 'plus' ELSE 'minus' END
SELECT id FROM t TABLESAMPLE (10 PERCENT)
SELECT flag, sum(i) / count(i) AS mean, sum(m) * 2 AS twice FROM t GROUP BY flag
SELECT ID, S FROM T WHERE I > 0
SELECT coalesce(u.label, 'none') AS label, sum(t.m) AS m, count(*) AS n FROM t LEFT JOIN u ON t.b = u.b GROUP BY coalesce(u.label, 'none')
SELECT i + 1 AS j, j * 2 AS k FROM t
SELECT d AS g, count(*) AS n FROM t GROUP BY d
SELECT sum(l) AS x FROM t
SELECT sum(m) AS x, sum(w) AS y FROM t
SELECT mean(i) AS a, every(flag) AS b, some(flag) AS c, any(flag) AS d FROM t
SELECT array_agg(id) AS ids FROM t WHERE id < 1
SELECT s, first_value(s) AS x FROM t GROUP BY s
SELECT flag, s, count(*) AS n FROM t GROUP BY ALL
SELECT b.id FROM (SELECT * FROM t WHERE i > 0 OR 100 / i > 1) b
SELECT max(i) AS top FROM t HAVING max(i) > 100000
SELECT u.label AS label, t.s AS s, sum(t.m * t.i) AS x FROM t JOIN u ON t.b = u.b WHERE t.day > '2023-06-01' GROUP BY u.label, t.s ORDER BY label, s
SELECT id AS k FROM t WHERE id IN (SELECT id FROM t WHERE flag) UNION ALL SELECT id FROM t WHERE NOT flag ORDER BY k LIMIT 12
SELECT s, count(*) AS n FROM t GROUP BY s ORDER BY n DESC, s NULLS LAST LIMIT 3 OFFSET 1
SELECT t.id, x.total FROM t JOIN (SELECT b, sum(w) AS total FROM u GROUP BY b) x ON t.b = x.b
SELECT id, CASE WHEN i IS NULL THEN 'none' WHEN i > 0 THEN concat('p', i) ELSE s END AS c FROM t
SELECT count(*) AS n FROM t a JOIN t b ON a.s = b.s AND a.id < b.id
SELECT id, explode(xs) AS x FROM t
SELECT id, explode(names) FROM t WHERE i > 0
SELECT id, x FROM t LATERAL VIEW explode(xs) e AS x
SELECT t.id, e.x FROM t LATERAL VIEW OUTER explode(xs) e AS x WHERE t.id < 20
SELECT e.x, count(*) AS n, sum(t.m) AS m FROM t LATERAL VIEW explode(names) e AS x GROUP BY e.x
SELECT t.id, a.x, b.y FROM t LATERAL VIEW explode(xs) a AS x LATERAL VIEW explode(names) b AS y
SELECT t.id, u.label, x FROM t JOIN u ON t.b = u.b LATERAL VIEW explode(xs) e AS x
SELECT id, explode(xs) AS x FROM t ORDER BY x DESC, id LIMIT 5
SELECT explode(split(s, ',')) AS part FROM t
SELECT part, count(*) AS n FROM (SELECT explode(split(s, ',')) AS part FROM t) q GROUP BY part
SELECT * EXCEPT (f, d, w, local, props) FROM t
SELECT t.* EXCEPT (f, d, local, props), u.label FROM t JOIN u ON t.b = u.b
SELECT flag, s, count(*) AS n FROM t GROUP BY ROLLUP (flag, s)
SELECT flag, s, sum(m) AS m FROM t GROUP BY CUBE (flag, s)
SELECT b, flag, count(*) AS n FROM t GROUP BY b, ROLLUP (flag)
SELECT flag, count(*) AS n FROM t GROUP BY flag WITH ROLLUP
SELECT id, sum(i) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS x FROM t
select id, sum(i) over (order by id rows between unbounded preceding and 1 following) as x from t
SELECT id, lag(s) OVER (PARTITION BY flag ORDER BY id) AS before FROM t
SELECT id, props FROM t WHERE props['a'] > 0
