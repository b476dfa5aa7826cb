package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.OptionalLong;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A planned read of one version: parts of the table, each read as Arrow batches. */
final class TableScan implements SupportsReportStatistics, SupportsReportPartitioning, SupportsRuntimeV2Filtering,
    Batch {
  private final HeadwaterTable table;
  private final StructType columns;
  private final ObjectNode scan;
  private final CaseInsensitiveStringMap options;
  private ObjectNode runtime;
  private InputPartition[] parts;
  private boolean byPartition;

  TableScan(HeadwaterTable table, StructType columns, ObjectNode scan, CaseInsensitiveStringMap options) {
    this.table = table;
    this.columns = columns;
    this.scan = scan;
    this.options = options;
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public String description() {
    return table.name() + " version " + table.pinned() + " columns " + scan.get("columns")
        + (scan.has("fields") ? " of which " + scan.get("fields") : "")
        + " pushed filter: " + scan.get("filter").asText() + (scan.has("limit") ? " limit " + scan.get("limit") : "");
  }

  @Override
  public Scan.ColumnarSupportMode columnarSupportMode() {
    return Scan.ColumnarSupportMode.SUPPORTED;
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return new TableStream(table, columns, scan, options, checkpoint);
  }

  @Override
  public Statistics estimateStatistics() {
    long rows = matching();
    long limit = scan.has("limit") ? scan.get("limit").asLong() : rows;
    long bytes = rows * Math.max(8, columns.defaultSize());
    return new Estimate(OptionalLong.of(bytes), OptionalLong.of(Math.min(rows, limit)));
  }

  private long matching() {
    if (!scan.has("prune")) {
      return table.loaded.get("rows").asLong();
    }
    ObjectNode request = table.session.request("matching_rows");
    request.set("scan", scan);
    return table.session.call(request).asLong();
  }

  /** The columns by which a join may tell, when it runs, which partitions to read. */
  @Override
  public NamedReference[] filterAttributes() {
    return scan.has("search") ? new NamedReference[0] : table.partitions().references(columns);
  }

  @Override
  public void filter(Predicate[] predicates) {
    this.runtime = Pruning.all(table.partitions(), predicates);
    this.parts = null;
  }

  /** By partition, if every task can read one alone: then a join or grouping on what divides them needs no exchange. */
  @Override
  public org.apache.spark.sql.connector.read.partitioning.Partitioning outputPartitioning() {
    Partitioning layout = table.layout();
    if (!byPartition && layout.canBeReported(columns) && !scan.has("search") && !scan.has("limit")) {
      InputPartition[] found = planned(true);
      byPartition = found.length > 0;
      for (InputPartition part : found) {
        byPartition &= Json.parse(((Told) part).json()).has("key");
      }
      if (byPartition) {
        parts = KeyedPart.all(found, layout, columns);
      }
    }
    return byPartition ? new KeyGroupedPartitioning(layout.transforms(), parts.length) : new UnknownPartitioning(0);
  }

  @Override
  public InputPartition[] planInputPartitions() {
    if (parts == null) {
      parts = planned(byPartition);
      parts = byPartition ? KeyedPart.all(parts, table.layout(), columns) : parts;
    }
    return parts;
  }

  private InputPartition[] planned(boolean divided) {
    ObjectNode planned = scan.deepCopy();
    planned.set("prune", Pruning.both((ObjectNode) scan.get("prune"), runtime));
    ObjectNode request = table.session.request("plan");
    request.set("scan", planned);
    request.put("parallelism", SparkSession.active().sparkContext().defaultParallelism());
    if (divided) {
      request.put("by_partition", true);
    }
    return Part.all(table.session.call(request));
  }

  /** How many rows an index found when the parts were planned; -1 if none was asked or they are not taken by id. */
  long rowsByIndex() {
    long found = 0;
    for (InputPartition part : planInputPartitions()) {
      JsonNode count = Json.parse(((Told) part).json()).get("count");
      if (count == null) {
        return -1;
      }
      found += count.asLong();
    }
    return found;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Factory(table.session.python, scan.toString(), columns);
  }

  record Estimate(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}

  /** What one task reads; what it says is between planning and reading, both in Python. */
  interface Told extends InputPartition {
    String json();
  }

  /** One part of a scan that is of one partition. */
  record KeyedPart(String json, InternalRow partitionKey) implements Told, HasPartitionKey {
    static InputPartition[] all(InputPartition[] parts, Partitioning layout, StructType columns) {
      InputPartition[] keyed = new InputPartition[parts.length];
      for (int i = 0; i < parts.length; i++) {
        String json = ((Told) parts[i]).json();
        keyed[i] = new KeyedPart(json, layout.key(Json.parse(json).get("key"), columns));
      }
      return keyed;
    }
  }

  /** One part of a scan. */
  record Part(String json) implements Told {
    static InputPartition[] all(JsonNode planned) {
      InputPartition[] parts = new InputPartition[planned.size()];
      for (int i = 0; i < parts.length; i++) {
        parts[i] = new Part(planned.get(i).toString());
      }
      return parts;
    }
  }

  record Factory(String python, String scan, StructType columns) implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new BatchReader(python, scan, ((Told) partition).json(), columns);
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("Parts of a Lance table are read in batches.");
    }
  }
}
