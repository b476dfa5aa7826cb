package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * UPDATE, DELETE and MERGE of a stream table with keys: a row is known by its key and sequence. Tasks write files of
 * the log; the driver lands all of them in one transaction, if nobody else has landed since the table was read.
 */
final class StreamRowLevel extends RowChanges {
  private static final String[] KINDS = {"deleted", "upserted", "inserted"};
  private static final int DELETED = 0;
  private static final int UPSERTED = 1;
  private static final int INSERTED = 2;

  StreamRowLevel(HeadwaterTable table, Command command) {
    super(table, command);
  }

  @Override
  public NamedReference[] rowId() {
    return table.marks().stream().map(Expressions::column).toArray(NamedReference[]::new);
  }

  @Override
  protected DeltaWrite write(LogicalWriteInfo info) {
    return new Delta(table, command, info);
  }

  private record Delta(HeadwaterTable table, Command command, LogicalWriteInfo info)
      implements DeltaWrite, DeltaBatchWrite {
    @Override
    public DeltaBatchWrite toBatch() {
      return this;
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
      ObjectNode request = Json.object().put("op", "write");
      request.set("table", table.reference());
      StructType marks = info.rowIdSchema().orElseThrow();
      return new Factory(table.session.python, request.toString(), info.schema(), marks, List.copyOf(table.keys()));
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      ObjectNode request = table.commit("commit_events").put("has_read", true);
      request.put("command", command.name().toLowerCase(Locale.ROOT));
      for (String kind : KINDS) {
        request.putArray(kind);
      }
      for (WriterCommitMessage message : messages) {
        if (message != null) {
          JsonNode written = Json.parse(((Written) message).json());
          for (String kind : KINDS) {
            written.get(kind).forEach(((ArrayNode) request.get(kind))::add);
          }
        }
      }
      table.session.call(request);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      // files of a failed job belong to no delta; collection removes them
    }
  }

  /** What one task wrote, by kind. */
  private record Written(String json) implements WriterCommitMessage {}

  private record Factory(String python, String request, StructType schema, StructType marks, List<String> keys)
      implements DeltaWriterFactory {
    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new TaskWriter(this);
    }
  }

  private static final class TaskWriter implements DeltaWriter<InternalRow> {
    private final Factory factory;
    private final BatchSender[] senders = new BatchSender[KINDS.length];

    TaskWriter(Factory factory) {
      this.factory = factory;
    }

    @Override
    public void delete(InternalRow metadata, InternalRow id) throws IOException {
      sender(DELETED).write(id);
    }

    /** A row with another key is the end of the old one and a new one. */
    @Override
    public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
      if (isSameKey(id, row)) {
        sender(UPSERTED).write(row);
      } else {
        delete(metadata, id);
        insert(row);
      }
    }

    @Override
    public void reinsert(InternalRow metadata, InternalRow row) throws IOException {
      insert(row);
    }

    @Override
    public void insert(InternalRow row) throws IOException {
      sender(INSERTED).write(row);
    }

    private boolean isSameKey(InternalRow id, InternalRow row) {
      for (String key : factory.keys) {
        int before = factory.marks.fieldIndex(key);
        int after = factory.schema.fieldIndex(key);
        DataType type = factory.schema.fields()[after].dataType();
        Object old = id.get(before, type);
        Object now = row.isNullAt(after) ? null : row.get(after, type);
        boolean same = old instanceof byte[] bytes ? now instanceof byte[] others && Arrays.equals(bytes, others)
            : old.equals(now);
        if (!same) {
          return false;
        }
      }
      return true;
    }

    private BatchSender sender(int kind) throws IOException {
      if (senders[kind] == null) {
        ObjectNode request = ((ObjectNode) Json.parse(factory.request)).put("deletes", kind == DELETED);
        StructType schema = kind == DELETED ? factory.marks : factory.schema;
        senders[kind] = new BatchSender(factory.python, request.toString(), schema);
      }
      return senders[kind];
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      ObjectNode written = Json.object();
      for (int kind = 0; kind < KINDS.length; kind++) {
        written.set(KINDS[kind], senders[kind] == null ? Json.MAPPER.createArrayNode() : senders[kind].finish());
      }
      return new Written(written.toString());
    }

    @Override
    public void abort() {
      // close breaks the streams off
    }

    @Override
    public void close() {
      for (BatchSender sender : senders) {
        if (sender != null) {
          sender.close();
        }
      }
    }
  }
}
