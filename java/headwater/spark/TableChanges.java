package headwater.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * CHANGES FROM ... TO ...: inserts, deletes, and updates as pre- and post-images. Of a Lance table between versions, see
 * headwater/tables/scan/changes.py; of a stream table between positions of its log, see headwater/spark/following.py.
 */
final class TableChanges implements Changelog {
  private final HeadwaterTable table;
  private final ChangelogContext context;
  private final StructType schema;

  TableChanges(HeadwaterTable table, ChangelogContext context) {
    this.table = table;
    this.context = context;
    StructType rows = table.isStream() ? table.own() : table.schema;
    StructType told = rows
        .add("_change_type", DataTypes.StringType, false)
        .add("_commit_version", DataTypes.LongType, false)
        .add("_commit_timestamp", DataTypes.TimestampType, false);
    this.schema = table.isStream() ? told : told.add(HeadwaterTable.ROW_ID, DataTypes.LongType, false);
  }

  @Override
  public String name() {
    return table.name() + " changes";
  }

  @Override
  public Column[] columns() {
    List<Column> columns = new ArrayList<>();
    for (StructField field : schema.fields()) {
      columns.add(Column.create(field.name(), field.dataType(), field.nullable()));
    }
    return columns.toArray(new Column[0]);
  }

  @Override
  public boolean containsCarryoverRows() {
    return false;
  }

  @Override
  public boolean containsIntermediateChanges() {
    return table.isStream() ? table.isKeyed() : table.loaded.get("stable_row_ids").asBoolean();
  }

  @Override
  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  @Override
  public NamedReference[] rowId() {
    List<String> names = table.isStream() ? table.keys() : List.of(HeadwaterTable.ROW_ID);
    return names.stream().map(name -> Expressions.column(Partitioning.quoted(name))).toArray(NamedReference[]::new);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new Builder(options);
  }

  private ObjectNode range() {
    ChangelogRange asked = context.range();
    ObjectNode range = Json.object();
    if (asked instanceof ChangelogRange.UnboundedRange) { // has no bounds to be asked for
      return range.put("start", "1").putNull("end").put("start_inclusive", true).put("end_inclusive", true);
    }
    range.put("start_inclusive", asked.startingBoundInclusive()).put("end_inclusive", asked.endingBoundInclusive());
    if (asked instanceof ChangelogRange.VersionRange versions) {
      return range.put("start", versions.startingVersion()).put("end", versions.endingVersion().orElse(null));
    }
    ChangelogRange.TimestampRange times = (ChangelogRange.TimestampRange) asked;
    range.put("start_micros", times.startingTimestamp());
    times.endingTimestamp().ifPresent(end -> range.put("end_micros", end));
    return range;
  }

  private final class Builder implements ScanBuilder, SupportsPushDownRequiredColumns, Scan, Batch {
    private final CaseInsensitiveStringMap options;
    private StructType columns = schema;

    Builder(CaseInsensitiveStringMap options) {
      this.options = options;
    }

    @Override
    public void pruneColumns(StructType required) {
      List<StructField> kept = new ArrayList<>();
      for (StructField field : required.fields()) {
        kept.add(schema.apply(field.name()));
      }
      columns = new StructType(kept.toArray(new StructField[0]));
    }

    @Override
    public Scan build() {
      return this;
    }

    @Override
    public StructType readSchema() {
      return columns;
    }

    @Override
    public String description() {
      return name() + " " + range();
    }

    @Override
    public Batch toBatch() {
      return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new TableStream(table, columns, scan(), starting(), checkpoint);
    }

    /** The options of the stream; Spark has read where to start, and may have taken that out of them. */
    private CaseInsensitiveStringMap starting() {
      Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
      if (context.range() instanceof ChangelogRange.VersionRange versions) {
        String start = versions.startingVersion();
        all.keySet().removeIf(name -> name.equalsIgnoreCase("startingVersion"));
        all.put("startingVersion",
            versions.startingBoundInclusive() ? start : String.valueOf(Long.parseLong(start) + 1));
      } else if (context.range() instanceof ChangelogRange.TimestampRange times) {
        all.put("startingMicros",
            String.valueOf(times.startingTimestamp() + (times.startingBoundInclusive() ? 0 : 1)));
      }
      return new CaseInsensitiveStringMap(all);
    }

    private ObjectNode scan() {
      ObjectNode scan = Json.object().put("changes", true).putNull("filter");
      scan.set("table", table.reference());
      scan.set("columns", Json.array(columns.fieldNames()));
      return scan;
    }

    @Override
    public InputPartition[] planInputPartitions() {
      ObjectNode request = table.request("changes_plan");
      request.set("range", range());
      request.put("parallelism", SparkSession.active().sparkContext().defaultParallelism());
      return TableScan.Part.all(table.session.call(request));
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new TableScan.Factory(table.session.python, scan().toString(), columns);
    }
  }
}
