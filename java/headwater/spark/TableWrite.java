package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.function.Consumer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;

/** INSERT, overwrite and the streaming sink: executors write data files, the driver makes one commit. */
final class TableWrite implements RequiresDistributionAndOrdering, BatchWrite, StreamingWrite {
  private final Session session;
  private final String name;
  private final LogicalWriteInfo info;
  private final ObjectNode target;
  private final String overwrite;
  private final Consumer<JsonNode> staged;
  private final Partitioning partitions;
  private final ObjectNode prune;
  private final boolean dynamic;
  private final boolean logged;
  private final boolean keyed;
  private final boolean merging;

  private TableWrite(Builder builder) {
    this.session = builder.session;
    this.name = builder.name;
    this.info = builder.info;
    this.target = builder.target;
    this.overwrite = builder.overwrite;
    this.staged = builder.staged;
    this.partitions = builder.partitions;
    this.prune = builder.prune;
    this.dynamic = builder.dynamic;
    this.logged = builder.table != null && builder.table.isStream();
    this.keyed = logged && builder.table.isKeyed();
    this.merging = builder.merging;
  }

  @Override
  public Distribution requiredDistribution() {
    return partitions.distribution();
  }

  @Override
  public boolean distributionStrictlyRequired() {
    return false;
  }

  @Override
  public SortOrder[] requiredOrdering() {
    return partitions.ordering();
  }

  @Override
  public String description() {
    return name;
  }

  @Override
  public BatchWrite toBatch() {
    if (logged && !merging && keyed && !target.has("given")) {
      throw new HeadwaterException(HeadwaterException.INVALID_INPUT, name + " has keys, and this session cannot tell "
          + "which columns the statement gives: start it with spark.sql.extensions = " + Extensions.class.getName()
          + ", as headwater.spark.configure() does, or land the rows with headwater.pipeline.ingest.");
    }
    return this;
  }

  @Override
  public StreamingWrite toStreaming() {
    return this;
  }

  @Override
  public boolean useCommitCoordinator() {
    return true;
  }

  @Override
  public Factory createBatchWriterFactory(PhysicalWriteInfo physical) {
    return new Factory(session.python, target.toString(), info.schema());
  }

  @Override
  public Factory createStreamingWriterFactory(PhysicalWriteInfo physical) {
    ObjectNode streamed = target.deepCopy().put("query", info.queryId());
    return new Factory(session.python, streamed.toString(), info.schema());
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    ArrayNode fragments = Written.fragments(messages);
    if (staged != null) {
      staged.accept(fragments);
      return;
    }
    if (logged) {
      ObjectNode request = session.commit("commit_events").put("command", merging ? "merge" : "insert");
      request.set("table", target.get("table"));
      request.put("has_read", merging).set(merging ? "inserted" : "upserted", fragments);
      session.call(request);
      return;
    }
    ObjectNode request = session.commit(
        dynamic ? "overwrite_partitions" : overwrite == null ? "append" : "overwrite");
    request.set("table", target.get("table"));
    request.set("fragments", fragments);
    if (overwrite != null && !dynamic) {
      request.put("filter", overwrite).set("prune", prune);
    }
    session.call(request);
  }

  @Override
  public void commit(long batch, WriterCommitMessage[] messages) {
    ObjectNode request = session.request("commit_batch");
    request.set("table", target.get("table"));
    request.set("fragments", Written.fragments(messages));
    request.put("stream", info.queryId()).put("batch", batch).put("truncate", overwrite != null);
    session.call(request);
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    // files of a failed job belong to no version; cleanup collects them
  }

  @Override
  public void abort(long batch, WriterCommitMessage[] messages) {
    // as above
  }

  /** What one task wrote. */
  record Written(String json) implements WriterCommitMessage {
    static ArrayNode fragments(WriterCommitMessage[] messages) {
      ArrayNode all = Json.MAPPER.createArrayNode();
      for (WriterCommitMessage message : messages) {
        if (message != null) {
          Json.parse(((Written) message).json()).forEach(all::add);
        }
      }
      return all;
    }
  }

  record Factory(String python, String request, StructType schema)
      implements DataWriterFactory, StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      return new TaskWriter(this);
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      return new TaskWriter(this);
    }
  }

  /** The rows of one task; no row, no file. */
  private static final class TaskWriter implements DataWriter<InternalRow> {
    private final Factory factory;
    private BatchSender sender;

    TaskWriter(Factory factory) {
      this.factory = factory;
    }

    @Override
    public void write(InternalRow row) throws IOException {
      if (sender == null) {
        sender = new BatchSender(factory.python, factory.request, factory.schema);
      }
      sender.write(row);
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      return new Written(sender == null ? "[]" : sender.finish().toString());
    }

    @Override
    public void abort() {
      // close breaks the stream off
    }

    @Override
    public void close() {
      if (sender != null) {
        sender.close();
      }
    }
  }

  /** Into a stream table with keys: a row that a query gives again, changed, is an upsert like any other. */
  static final class UpsertBuilder extends Builder implements SupportsStreamingUpdateAsAppend {
    UpsertBuilder(HeadwaterTable table, LogicalWriteInfo info) {
      super(table, info);
    }
  }

  static class Builder implements WriteBuilder, SupportsOverwriteV2, SupportsDynamicOverwrite {
    private final Session session;
    private final String name;
    private final LogicalWriteInfo info;
    private final ObjectNode target = Json.object().put("op", "write");
    private final Consumer<JsonNode> staged;
    private final Predicates predicates;
    private final Partitioning partitions;
    private final HeadwaterTable table;
    private String overwrite;
    private ObjectNode prune;
    private boolean dynamic;
    private boolean merging;

    Builder(HeadwaterTable table, LogicalWriteInfo info) {
      this.session = table.session;
      this.name = table.name();
      this.info = info;
      this.staged = null;
      this.table = table;
      this.predicates = new Predicates(table.loaded.get("filterable"));
      this.partitions = table.partitions();
      target.set("table", table.reference());
    }

    Builder(StagedLanceTable table, LogicalWriteInfo info) {
      this.session = table.catalog.session();
      this.name = table.name();
      this.info = info;
      this.staged = table::add;
      this.table = null;
      this.predicates = new Predicates(Json.object());
      this.partitions = table.partitions();
      target.set("table", table.staged.get("table"));
      target.set("arrow", table.staged.get("arrow"));
    }

    @Override
    public boolean canOverwrite(Predicate[] filters) {
      return predicates.all(filters) != null;
    }

    @Override
    public WriteBuilder overwrite(Predicate[] filters) {
      refuseStream();
      this.overwrite = predicates.all(filters);
      this.prune = Pruning.all(partitions, filters);
      return this;
    }

    @Override
    public WriteBuilder truncate() {
      refuseStream();
      this.overwrite = "true";
      return this;
    }

    @Override
    public WriteBuilder overwriteDynamicPartitions() {
      refuseStream();
      this.dynamic = true;
      return this;
    }

    private void refuseStream() {
      if (table != null && table.isStream()) {
        table.refuse();
      }
    }

    @Override
    public Write build() {
      String given = info.options().get(StreamRules.GIVEN);
      if (table != null && table.isKeyed() && given != null) {
        this.merging = given.equals(StreamRules.NEW_ROWS);
        if (!merging) {
          target.set("given", given(Json.parse(given)));
        }
      }
      return new TableWrite(this);
    }

    /** The columns that an INSERT names: in a table with keys, the others of a row stay as they are. */
    private ArrayNode given(JsonNode told) {
      ArrayNode names = Json.MAPPER.createArrayNode();
      String[] columns = table.schema.fieldNames();
      for (int i = 0; i < columns.length; i++) {
        String column = columns[i];
        boolean named = told.isInt() ? i < told.asInt() : Json.texts(told).stream().anyMatch(column::equalsIgnoreCase);
        if (named) {
          names.add(column);
        }
      }
      return names;
    }
  }
}
