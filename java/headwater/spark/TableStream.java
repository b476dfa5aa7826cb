package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.CompositeReadLimit;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxFiles;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The rows appended to a table, version by version (headwater/spark/stream.py), or what the log of a stream table holds,
 * position by position (headwater/spark/following.py).
 */
final class TableStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final HeadwaterTable table;
  private final StructType columns;
  private final ObjectNode scan;
  private final ObjectNode options;
  private final String checkpoint;
  private String last;

  TableStream(HeadwaterTable table, StructType columns, ObjectNode scan, CaseInsensitiveStringMap options,
      String checkpoint) {
    this.table = table;
    this.columns = columns;
    this.scan = scan.deepCopy();
    this.scan.set("schema", Json.parse(columns.json())); // the version it was planned at may be cleaned up meanwhile
    this.options = Json.object(options.asCaseSensitiveMap());
    this.checkpoint = checkpoint;
  }

  private ObjectNode request(String operation) {
    ObjectNode request = table.request(operation).put("checkpoint", checkpoint);
    request.set("options", options);
    return request.put("changes", scan.has("changes"));
  }

  @Override
  public Offset initialOffset() {
    return new Position(table.session.call(request("stream_initial")).toString());
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("latestOffset(start, limit) is asked instead");
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    JsonNode limit = option("maxVersionsPerTrigger");
    limit = limit == null ? option("maxPositionsPerTrigger") : limit;
    JsonNode rows = option("maxRowsPerTrigger");
    if (limit != null && rows != null) {
      return ReadLimit.compositeLimit(
          new ReadLimit[] {ReadLimit.maxFiles(limit.asInt()), ReadLimit.maxRows(rows.asLong())});
    }
    if (limit != null) {
      return ReadLimit.maxFiles(limit.asInt());
    }
    return rows != null ? ReadLimit.maxRows(rows.asLong()) : ReadLimit.allAvailable();
  }

  private JsonNode option(String name) {
    for (var entry : options.properties()) {
      if (entry.getKey().equalsIgnoreCase(name)) {
        return entry.getValue();
      }
    }
    return null;
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    this.last = table.session.call(request("stream_newest")).toString();
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    ObjectNode request = request("stream_latest");
    request.set("start", Json.parse(start.json()));
    limits(request, limit);
    if (last != null) {
      request.set("last", Json.parse(last));
    }
    JsonNode next = table.session.call(request);
    return next.isNull() ? null : new Position(next.toString());
  }

  private static void limits(ObjectNode request, ReadLimit limit) {
    if (limit instanceof ReadMaxFiles files) {
      request.put("max_versions", files.maxFiles());
    } else if (limit instanceof ReadMaxRows rows) {
      request.put("max_rows", rows.maxRows());
    } else if (limit instanceof CompositeReadLimit composite) {
      for (ReadLimit part : composite.getReadLimits()) {
        limits(request, part);
      }
    } else if (!(limit instanceof ReadAllAvailable)) {
      throw new UnsupportedOperationException("A Lance table cannot be read with the limit " + limit);
    }
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    ObjectNode request = request("stream_plan");
    request.set("start", Json.parse(start.json()));
    request.set("end", Json.parse(end.json()));
    request.set("scan", scan);
    request.put("parallelism", SparkSession.active().sparkContext().defaultParallelism());
    return TableScan.Part.all(table.session.call(request));
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new TableScan.Factory(table.session.python, scan.toString(), columns);
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new Position(json);
  }

  @Override
  public void commit(Offset end) {
    ObjectNode request = request("stream_done");
    request.set("end", Json.parse(end.json()));
    table.session.call(request);
  }

  @Override
  public void stop() {
    // the tag that protects unread versions stays, so that a stopped query can go on later
  }

  private static final class Position extends Offset {
    private final String json;

    Position(String json) {
      this.json = json;
    }

    @Override
    public String json() {
      return json;
    }
  }
}
