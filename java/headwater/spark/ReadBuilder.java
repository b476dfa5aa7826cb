package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.internal.connector.SupportsPushDownCatalystFilters;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Takes what Spark can leave to Lance: columns, filters, a limit, count(*). */
final class ReadBuilder implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownCatalystFilters,
    SupportsPushDownLimit, SupportsPushDownAggregates {
  private static final long FEW_ROWS = 2_000;
  private static final long FEW_BYTES = 4 << 20;

  private final HeadwaterTable table;
  private final CaseInsensitiveStringMap options;
  private final JsonNode search;
  private final boolean changing;
  private StructType columns;
  private ObjectNode fields = Json.object();
  private Predicate[] pushed = new Predicate[0];
  private String filter;
  private ObjectNode prune;
  private Integer limit;
  private boolean counting;

  ReadBuilder(HeadwaterTable table, CaseInsensitiveStringMap options) {
    this(table, options, false);
  }

  /** `changing`: the rows are read by a statement that changes them. */
  ReadBuilder(HeadwaterTable table, CaseInsensitiveStringMap options, boolean changing) {
    this.changing = changing;
    this.table = table;
    this.options = options;
    this.search = table.loaded.get("search");
    this.columns = table.schema;
  }

  @Override
  public void pruneColumns(StructType required) {
    List<StructField> kept = new ArrayList<>();
    this.fields = Json.object();
    for (StructField field : required.fields()) {
      scala.Option<Object> index = table.schema.getFieldIndex(field.name());
      kept.add(index.isDefined() ? narrowed(table.schema.fields()[(int) index.get()], field, fields) : field);
    }
    this.columns = new StructType(kept.toArray(new StructField[0]));
  }

  /**
   * The known field with those fields of its structs that are required, which are written into `tree`. Structs in
   * arrays and maps stay whole.
   */
  private static StructField narrowed(StructField known, StructField required, ObjectNode tree) {
    if (!(known.dataType() instanceof StructType all) || !(required.dataType() instanceof StructType some)
        || some.isEmpty()) {
      return known;
    }
    ObjectNode below = Json.object();
    StructType kept = new StructType();
    for (StructField field : all.fields()) {
      scala.Option<Object> index = some.getFieldIndex(field.name());
      if (index.isDefined()) {
        below.putNull(field.name());
        kept = kept.add(narrowed(field, some.fields()[(int) index.get()], below));
      }
    }
    if (kept.equals(all)) {
      return known;
    }
    tree.set(known.name(), below);
    return new StructField(known.name(), kept, known.nullable(), known.metadata());
  }

  @Override
  public Seq<Expression> pushFilters(Seq<Expression> filters) {
    if (search != null) {
      return filters;
    }
    Predicates translate = new Predicates(table.loaded.get("filterable"));
    List<Predicate> said = new ArrayList<>();
    List<Predicate> taken = new ArrayList<>();
    List<Expression> left = new ArrayList<>();
    List<String> parts = new ArrayList<>();
    for (Expression expression : CollectionConverters.asJava(filters)) {
      Predicate predicate = Patterns.predicate(expression);
      String sql = predicate == null ? null : translate.sql(predicate);
      if (predicate != null) {
        said.add(predicate);
      }
      if (sql == null) {
        left.add(expression);
      } else {
        taken.add(predicate);
        parts.add(sql);
      }
    }
    this.pushed = taken.toArray(new Predicate[0]);
    this.prune = Pruning.all(table.partitions(), said.toArray(new Predicate[0]));
    this.filter = parts.isEmpty() ? null : String.join(" AND ", parts);
    return CollectionConverters.asScala(left).toSeq();
  }

  @Override
  public Predicate[] pushedFilters() {
    return pushed;
  }

  @Override
  public boolean pushLimit(int limit) {
    this.limit = search == null ? limit : null;
    return search == null;
  }

  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return isCount(aggregation);
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    this.counting = isCount(aggregation);
    return counting;
  }

  private boolean isCount(Aggregation aggregation) {
    return search == null && aggregation.groupByExpressions().length == 0
        && aggregation.aggregateExpressions().length == 1
        && aggregation.aggregateExpressions()[0] instanceof CountStar;
  }

  @Override
  public Scan build() {
    table.isRead();
    ObjectNode scan = Json.object();
    scan.set("table", table.reference());
    scan.set("columns", Json.array(columns.fieldNames()));
    if (!fields.isEmpty()) {
      scan.set("fields", fields);
    }
    scan.put("filter", filter);
    if (prune != null) {
      scan.set("prune", prune);
    }
    if (limit != null) {
      scan.put("limit", limit);
    }
    if (search != null) {
      scan.set("search", search);
    }
    return counting ? new CountScan(table, scan) : few(new TableScan(table, columns, scan, options, used(), changing));
  }

  /** The top-level columns that the filter names. */
  private Set<String> used() {
    Set<String> used = new TreeSet<>();
    for (Predicate predicate : pushed) {
      for (NamedReference reference : predicate.references()) {
        used.add(reference.fieldNames()[0]);
      }
    }
    return used;
  }

  /**
   * The scan, or its rows if an index finds few: a job costs more than fetching them. Statements that change rows
   * always scan.
   */
  private Scan few(TableScan scan) {
    if (filter == null || changing || !table.loaded.path("indexed").asBoolean()) {
      return scan;
    }
    long rows = scan.rowsByIndex();
    long width = table.loaded.get("bytes").asLong() / Math.max(1, table.loaded.get("rows").asLong());
    return rows >= 0 && rows <= FEW_ROWS && rows * width <= FEW_BYTES ? new FewRowsScan(scan, rows) : scan;
  }
}
