package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
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
  /** What Spark itself counts for a row besides its columns. */
  static final int ROW_BYTES = 8;

  private final HeadwaterTable table;
  private final StructType columns;
  private final ObjectNode scan;
  private final CaseInsensitiveStringMap options;
  private final Set<String> used;
  private final boolean changing;
  private final ThreadLocal<Predicate[]> runtime = new ThreadLocal<>();
  private InputPartition[] parts;
  private Partitioning told = Partitioning.NONE;
  private long rows = -1;

  /** `used`: the columns that the filter names. `changing`: the rows are read by a statement that changes them. */
  TableScan(HeadwaterTable table, StructType columns, ObjectNode scan, CaseInsensitiveStringMap options,
      Set<String> used, boolean changing) {
    this.used = used;
    this.changing = changing;
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
        + (scan.has("ordered") ? " in the order of its key" : "")
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
    long bytes = rows * (ROW_BYTES + columns.defaultSize());
    return new Estimate(OptionalLong.of(bytes), OptionalLong.of(Math.min(rows, limit)));
  }

  /** About how many rows it finds. */
  long matching() {
    if (rows < 0) {
      boolean told = scan.has("prune") || (!used.isEmpty() && !table.isStream() && !scan.has("search"));
      rows = told ? estimated() : table.loaded.get("rows").asLong();
    }
    return rows;
  }

  private long estimated() {
    ObjectNode request = table.session.request("matching_rows");
    request.set("scan", scan);
    request.set("used", Json.array(used.toArray(new String[0])));
    return table.session.call(request).asLong();
  }

  /** Whether a join may leave out rows of it by their keys. */
  boolean takesKeys() {
    return !changing && !scan.has("limit") && !scan.has("search");
  }

  /** Whether a filter leaves less of the table than there is. */
  boolean isSelective() {
    return scan.has("limit") || matching() * 2 < table.loaded.get("rows").asLong();
  }

  /** Two reads of the same rows are one: what a query has exchanged once need not be exchanged again. */
  @Override
  public boolean equals(Object other) {
    return other instanceof TableScan that && !changing && !that.changing && scan.equals(that.scan)
        && columns.equals(that.columns) && table.session == that.table.session && shape().equals(that.shape());
  }

  @Override
  public int hashCode() {
    return scan.hashCode();
  }

  /** The columns by which a join may tell, when it runs, which partitions to read. */
  @Override
  public NamedReference[] filterAttributes() {
    return scan.has("search") ? new NamedReference[0] : table.partitions().references(columns);
  }

  @Override
  public void filter(Predicate[] predicates) {
    runtime.set(predicates);
  }

  /** By partition, if every task can read one alone: then a join or grouping on what divides them needs no exchange. */
  @Override
  public org.apache.spark.sql.connector.read.partitioning.Partitioning outputPartitioning() {
    Partitioning layout = table.layout();
    Partitioning one = table.isSmall() ? Partitioning.ofOne(table.keys()) : Partitioning.NONE;
    boolean worth = layout.canBeReported(columns) || one.canBeReported(columns);
    if (told.isEmpty() && worth && !scan.has("search") && !scan.has("limit")) {
      InputPartition[] found = planned(true, null, null);
      boolean keyed = found.length > 0 && layout.canBeReported(columns);
      for (InputPartition part : found) {
        keyed &= Json.parse(((Told) part).json()).has("key");
      }
      told = keyed ? layout : found.length == 1 && one.canBeReported(columns) ? one : Partitioning.NONE;
      parts = told.isEmpty() ? null : keyed(found);
    }
    return told.isEmpty() ? new UnknownPartitioning(0) : new KeyGroupedPartitioning(told.transforms(), parts.length);
  }

  /** By what its rows are told to be divided. */
  List<String> shape() {
    return told.shape();
  }

  /** The columns that rows of each part can be ordered by: the key, if parts are told and in no order yet. */
  List<String> orderable() {
    boolean can = !told.isEmpty() && table.isOrderable() && !scan.has("ordered") && !changing;
    return can ? table.keys() : List.of();
  }

  /** The same rows, those of each part in the order of the key. */
  TableScan ordered() {
    TableScan made = new TableScan(table, columns, scan.deepCopy().put("ordered", true), options, used, changing);
    made.told = told;
    return made;
  }

  /** All parts; after `filter` those of its keys, once: a scan may stand in a query twice, with a filter and without. */
  @Override
  public InputPartition[] planInputPartitions() {
    Predicate[] found = runtime.get();
    runtime.remove();
    if (found != null) {
      return keyed(planned(!told.isEmpty(), Pruning.all(table.partitions(), found), JoinKeys.json(columns, found)));
    }
    if (parts == null) {
      parts = keyed(planned(!told.isEmpty(), null, null));
    }
    return parts;
  }

  private InputPartition[] keyed(InputPartition[] found) {
    return told.isEmpty() ? found : KeyedPart.all(found, told, columns);
  }

  private InputPartition[] planned(boolean divided, ObjectNode runtime, String keys) {
    ObjectNode planned = scan.deepCopy();
    planned.set("prune", Pruning.both((ObjectNode) scan.get("prune"), runtime));
    ObjectNode request = table.session.request("plan");
    request.set("scan", planned);
    request.put("parallelism", SparkSession.active().sparkContext().defaultParallelism());
    if (divided) {
      request.put("by_partition", true);
    }
    return Part.all(table.session.call(request), keys);
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

    /** The keys a join found that it needs, or null. */
    String keys();
  }

  /** One part of a scan that is of one partition. */
  record KeyedPart(String json, String keys, InternalRow partitionKey) implements Told, HasPartitionKey {
    static InputPartition[] all(InputPartition[] parts, Partitioning layout, StructType columns) {
      InputPartition[] keyed = new InputPartition[parts.length];
      for (int i = 0; i < parts.length; i++) {
        Told part = (Told) parts[i];
        JsonNode key = Json.parse(part.json()).path("key");
        keyed[i] = new KeyedPart(part.json(), part.keys(), layout.key(key.isArray() ? key : layout.first(), columns));
      }
      return keyed;
    }
  }

  /** One part of a scan. */
  record Part(String json, String keys) implements Told {
    static InputPartition[] all(JsonNode planned) {
      return all(planned, null);
    }

    static InputPartition[] all(JsonNode planned, String keys) {
      InputPartition[] parts = new InputPartition[planned.size()];
      for (int i = 0; i < parts.length; i++) {
        parts[i] = new Part(planned.get(i).toString(), keys);
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
      return new BatchReader(python, scan, (Told) partition, columns);
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("Parts of a Lance table are read in batches.");
    }
  }
}
