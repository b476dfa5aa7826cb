b + b
h - b
i * h
i + 1
l + i
l * 2
b + 1
-b
-i
-l
-m
-d
f + i
d * 2
m + i
m - 1.5
m * m
m * 2
m + m
w + 1
w * w
m + d
i / h
l / 2
m / 2
d / f
i % h
i % 2
b % b
d % 2
m % 2
i div h
l div i
l div -1
i % -1
abs(b)
abs(i)
abs(m)
abs(d)
sign(i)
sign(d)
sign(m)
floor(d)
ceil(d)
floor(m)
ceil(m)
floor(i)
round(d)
round(m, 1)
round(m)
round(i)
round(d, 2)
round(i, -1)
bround(d)
sqrt(d)
sqrt(i)
exp(d)
ln(d)
pow(d, 2)
log10(d)
mod(i, h)
pmod(i, h)
greatest(i, h)
least(i, b, l)
greatest(m, d)
i & h
i | 3
(i ^ h)
~i
i << 2
bit_count(i)
i = l
i < d
m >= i
m = d
d <=> f
s = n
s < n
s <=> NULL
i = n
s > 'b'
day = at
day < '2024-02-01'
at >= '2024-01-01 00:00:00'
flag = true
xs = xs
place = place
i IN (101, 202, NULL)
s IN ('x', 'apple')
i NOT IN (101, 202)
i BETWEEN -300 AND 300
m BETWEEN 0 AND 5
s LIKE 'a%'
s LIKE '%\_%'
s LIKE 'a_p%'
s RLIKE '^a'
s ILIKE 'A%'
NOT flag
flag AND i > 0
flag OR i > 0
flag IS TRUE
flag IS NOT FALSE
i IS NULL
coalesce(i, h, 0)
nvl(s, 'none')
nullif(i, 101)
if(flag, i, h)
nvl2(s, i, l)
ifnull(m, 0)
isnull(i)
isnan(d)
CASE WHEN i > 0 THEN 'pos' WHEN i < 0 THEN 'neg' END
CASE b WHEN 1 THEN i WHEN 2 THEN l ELSE 0 END
CASE WHEN h <> 0 THEN i / h ELSE 0 END
upper(s)
lower(s)
length(s)
char_length(n)
trim(s)
ltrim(s)
rtrim(s)
substring(s, 2, 3)
substr(s, 0, 2)
substring(s, -3, 2)
substring(s, 2)
substring(s, i, 2)
left(s, 2)
right(s, 2)
concat(s, n)
concat(s, '-', i)
s || n
s || i
concat_ws('-', s, n)
replace(s, 'a', 'o')
instr(s, 'a')
locate('a', s)
startswith(s, 'a')
endswith(s, 'e')
contains(s, 'an')
lpad(s, 7, '*')
rpad(n, 5, '.')
split_part(s, ',', 2)
reverse(s)
initcap(s)
repeat(s, 2)
md5(s)
sha2(s, 256)
crc32(s)
hash(i)
translate(s, 'a', 'b')
ascii(s)
soundex(s)
regexp_replace(s, 'a', 'b')
split(s, ',')
CAST(i AS STRING)
CAST(l AS INT)
CAST(i AS TINYINT)
CAST(d AS INT)
CAST(d AS BIGINT)
CAST(m AS INT)
CAST(m AS DOUBLE)
CAST(w AS DOUBLE)
CAST(m AS STRING)
CAST(w AS STRING)
CAST(d AS STRING)
CAST(d AS DECIMAL(10,2))
CAST(m AS DECIMAL(8,1))
CAST(i AS DECIMAL(6,2))
CAST(n AS INT)
CAST(n AS BIGINT)
CAST(n AS DOUBLE)
CAST(n AS DECIMAL(6,2))
CAST(n AS DATE)
CAST(n AS BOOLEAN)
CAST(n AS TIMESTAMP)
CAST(flag AS INT)
CAST(flag AS STRING)
CAST(i AS BOOLEAN)
CAST(day AS STRING)
CAST(at AS STRING)
CAST(at AS DATE)
CAST(day AS TIMESTAMP)
CAST(at AS BIGINT)
CAST(at AS TIMESTAMP_NTZ)
CAST(local AS STRING)
CAST(f AS DOUBLE)
CAST(d AS FLOAT)
CAST(i AS DOUBLE)
CAST(xs AS ARRAY<BIGINT>)
CAST(s AS BINARY)
TRY_CAST(n AS INT)
year(day)
month(at)
day(at)
dayofmonth(day)
quarter(day)
dayofweek(day)
weekday(day)
dayofyear(day)
weekofyear(day)
hour(at)
minute(at)
second(at)
extract(YEAR FROM at)
extract(SECOND FROM at)
extract(DAY FROM day)
date_add(day, 3)
date_sub(day, b)
datediff(day, DATE '2024-01-01')
datediff(at, day)
add_months(day, 1)
add_months(day, b)
last_day(day)
trunc(day, 'MONTH')
trunc(day, 'week')
date_trunc('HOUR', at)
date_trunc('month', at)
date_trunc('day', local)
date_format(at, 'yyyy-MM-dd HH:mm:ss')
date_format(day, 'dd/MM/yyyy')
date_format(at, 'EEEE')
to_date(n)
to_timestamp(n)
day + 1
day - 1
day + INTERVAL 2 DAYS
day - INTERVAL 1 MONTH
at + INTERVAL 3 HOURS
at - INTERVAL 1 YEAR
day + INTERVAL 1 HOUR
day - day
at - at
unix_seconds(at)
unix_millis(at)
unix_micros(at)
unix_timestamp(at)
timestamp_seconds(i)
make_date(2024, 2, b)
months_between(day, day)
next_day(day, 'MO')
from_unixtime(l)
xs[0]
xs[2]
xs[b]
element_at(xs, 1)
element_at(xs, -1)
element_at(xs, 4)
size(xs)
array_contains(xs, 3)
array_contains(xs, i)
array_max(xs)
array_min(names)
sort_array(xs)
array(i, h, 1)
array(i, m)
array_join(names, '+')
array_distinct(xs)
cardinality(names)
transform(xs, x -> x + 1)
map('a', i)
place.city
place.zip + 1
named_struct('a', i, 'c', s)
struct(i, s AS t)
t.place.city
1.50
2147483648
-2147483648
1L
1e3
1.5BD
'it\'s'
DATE '2024-02-29'
TIMESTAMP '2024-01-01 10:00:00.5'
NULL
true
3 / 2
7 % -3
'a' 'b'
"text"
i > 0 AND 100 / i > 1
(i > 0) = flag
i + CAST(n AS INT)
s = CAST(i AS STRING)
uuid()
rand() > 2
typeof(i)
i::bigint
cast(1 as tinyint) + b
count_if(true) OVER ()
sum(i) OVER (ORDER BY id)
row_number() OVER (ORDER BY id)
lag(i) OVER (ORDER BY id)
lead(i, 2, 0) OVER (ORDER BY id)
rank() OVER (ORDER BY s, id)
dense_rank() OVER (ORDER BY flag)
sum(m) OVER (PARTITION BY flag ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
max(i) OVER (PARTITION BY s)
first(i) OVER (ORDER BY id)
ntile(3) OVER (ORDER BY id)
percent_rank() OVER (ORDER BY id)
avg(i) OVER (ORDER BY id RANGE 1 PRECEDING)
isnotnull(s)
signum(m)
ceiling(d)
ucase(s)
lcase(s)
len(s)
character_length(s)
position('a', s)
dateadd(day, 2)
date_diff(day, DATE '2024-03-01')
date(at)
to_unix_timestamp(at)
array_size(xs)
cume_dist() OVER (ORDER BY id)
i > 0 OR 100 / i > 1
flag AND i > 0 AND i + 1 > 5
s IS NOT NULL AND CAST(n AS INT) > 1
NOT (i > 0 AND h < 0)
i + h * b - 2
(i + h) * b
m * i
m * b + l
CAST(b AS DECIMAL(5,2)) + m
f + f
f * b
f / 2
d + m
f = d
f > 1
b = 1
b + 1L
h * 1000
l + 1.5
1.5 + 2
10 / 4
-7 div 2
-7 % 3
7.5 % 2
day BETWEEN '2023-01-01' AND '2024-06-01'
at < local
day <=> NULL
CAST(day AS STRING) = '2024-01-31'
concat(s, day)
concat_ws(',', s, NULL, n)
coalesce(NULL, i)
coalesce(day, DATE '2000-01-01')
coalesce(m, i)
coalesce(f, i)
if(i > 0, m, i)
CASE WHEN flag THEN i WHEN NOT flag THEN m END
nullif(s, 'x')
greatest(day, DATE '2024-01-01')
least(s, n)
greatest(d, f)
array(1, NULL, i)
array(s, n)[1]
size(array(1, 2))
place.zip IS NULL
named_struct('x', i).x
substring(s, -20, 18)
substring(s, 3, 0)
left(s, 0)
right(s, 0)
lpad(s, 2, 'ab')
rpad(s, 0, 'x')
replace(s, 'an')
split_part(s, ',', 9)
instr(s, 'é')
length('日本')
upper('é')
trim('	x ')
date_add(day, -40)
add_months(DATE '2024-01-31', 1)
add_months(DATE '2024-02-29', -12)
last_day(at)
trunc(at, 'year')
trunc(day, 'quarter')
date_trunc('week', at)
date_trunc('quarter', day)
date_trunc('second', at)
weekofyear(DATE '2021-01-03')
dayofweek(at)
datediff('2024-03-01', day)
year('2024-05-06')
at + INTERVAL 1 MONTH
at - INTERVAL 90 SECONDS
day + INTERVAL 1 WEEK
INTERVAL 1 DAY + day
local + INTERVAL 1 DAY
date_format(local, 'yyyy/MM')
unix_seconds(at) * 1000
CAST(CAST(i AS STRING) AS BIGINT)
CAST(' 7 ' AS INT)
CAST('1e2' AS DOUBLE)
CAST('12.345' AS DECIMAL(5,2))
CAST('2024-02-29' AS DATE)
CAST('2024-01-01 10:11:12.5' AS TIMESTAMP)
CAST('yes' AS BOOLEAN)
CAST(flag AS BIGINT) + i
CAST(m AS BIGINT)
CAST(w AS DECIMAL(20,2))
CAST(i AS SMALLINT)
CAST(d AS SMALLINT)
CAST(l AS DOUBLE)
CAST(i AS FLOAT)
CAST(m AS FLOAT)
CAST(at AS INT)
CAST(local AS TIMESTAMP)
CAST(local AS DATE)
CAST(NULL AS INT) + i
i = NULL
i IN (NULL)
s NOT IN ('x', NULL)
m IN (1.25, 2.5)
i IN (1, 2.5)
s LIKE '%'
s LIKE ''
s LIKE '%p_e%'
s LIKE 'a!%b' ESCAPE '!'
s NOT LIKE 'a%'
min(i) OVER (PARTITION BY flag ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING)
count(*) OVER (PARTITION BY s)
count(i) OVER (ORDER BY id)
sum(d) OVER (PARTITION BY flag)
rank() OVER (PARTITION BY flag ORDER BY i DESC)
lag(s, 1, 'none') OVER (ORDER BY id)
bool_and(flag) OVER (PARTITION BY s)
sum(i) FILTER (WHERE flag) OVER (ORDER BY id)
try_cast(n AS INT)
try_cast(n AS BOOLEAN)
try_cast(n AS TINYINT)
try_cast(l AS INT)
try_cast(d AS INT)
try_cast(d AS BIGINT)
try_cast(w AS DECIMAL(8, 2))
try_cast(i AS STRING)
try_cast(n AS DATE)
try_cast(day AS TIMESTAMP)
TRY_CAST(100 / i AS INT)
pmod(i, 7)
pmod(l, 3)
pmod(b, 5)
pmod(i, b)
split(s, ' ')
split(s, '\\.')
split(s, '[,]')
split(s, '')
split(s, ',', 2)
s RLIKE '^a'
s RLIKE 'e$'
s RLIKE 'a$'
s RLIKE '^[a-zA-Z ]+$'
s RLIKE '(an)+'
s RLIKE '\\d'
s RLIKE '\\s'
s RLIKE '\\S+\\s\\S+'
s RLIKE 'a.b'
s RLIKE '(?i)banana'
s RLIKE '[^a-z]'
s RLIKE 'x{1,2}|,'
s NOT RLIKE 'p{2}'
regexp_like(s, '\\w+')
regexp_replace(s, '[aeiou]', '_')
regexp_replace(s, '(\\w+) (\\w+)', '$2 $1')
regexp_replace(s, 'a*', 'x')
regexp_replace(s, ',', '\\$')
regexp_replace(s, 'e$', 'E')
regexp_replace(s, '[b-y]+?', '.')
regexp_replace(s, '.', '#')
regexp_extract(s, '([a-z]+)', 1)
regexp_extract(s, '([a-z])([a-z])', 2)
regexp_extract(s, '(b)|(a)', 1)
regexp_extract(s, '(\\d+)')
regexp_extract(s, '[a-z]+', 0)
regexp_extract(s, '([a-z]+)$', 1)
s ILIKE 'BAN%'
s ILIKE '%A_A%'
s NOT ILIKE 'APPLE'
n ILIKE '-%'
props['a']
props['zz']
props[s]
element_at(props, 'b')
map_keys(props)
map_values(props)
size(props)
props
props IS NULL
transform(xs, x -> x + 1)
transform(xs, x -> x * i)
transform(xs, (x, k) -> x + k)
transform(names, v -> upper(v))
filter(xs, x -> x > 0)
filter(names, v -> v IS NOT NULL)
size(filter(xs, x -> x > i))
transform(xs, x -> transform(xs, y -> x + y))
transform(xs, id -> id)
i + 1 > 5
i - 1 < 5
2 - i > 1
i * 100000 = 100000
-i > 3
l + 1 <> 7
