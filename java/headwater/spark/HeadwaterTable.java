package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.EnumSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A Lance table at the version it was loaded at. */
class HeadwaterTable implements SupportsRead, SupportsWrite, SupportsDeleteV2, SupportsRowLevelOperations,
    SupportsMetadataColumns {
  static final String ROW_ADDRESS = "_rowaddr";
  static final String ROW_ID = "_rowid";

  final Session session;
  final Identifier ident;
  final StructType schema;
  final JsonNode loaded;
  private final boolean travelled;

  HeadwaterTable(Session session, Identifier ident, StructType schema, JsonNode loaded, boolean travelled) {
    this.session = session;
    this.ident = ident;
    this.schema = schema;
    this.loaded = loaded;
    this.travelled = travelled;
  }

  /** The reference that planning, reading and writing need: location, version, storage options. */
  JsonNode reference() {
    return loaded.get("table");
  }

  long pinned() {
    return reference().get("version").asLong();
  }

  /** Whether its rows come from a change log. */
  boolean isStream() {
    return loaded.has("stream");
  }

  boolean isKeyed() {
    return !keys().isEmpty();
  }

  List<String> keys() {
    return Json.texts(loaded.path("stream").path("keys"));
  }

  /** Key and sequence columns of a stream table, by which its rows are known. */
  List<String> marks() {
    Set<String> marks = new LinkedHashSet<>(keys());
    marks.addAll(Json.texts(loaded.path("stream").path("sequence")));
    return List.copyOf(marks);
  }

  /** Whether it is read by one task, as few rows are. */
  boolean isSmall() {
    return loaded.path("stream").path("small").asBoolean();
  }

  /** Whether its rows can be had in the order of their keys. */
  boolean isOrderable() {
    return loaded.path("stream").path("orderable").asBoolean();
  }

  /** The columns of a stream table's log: without those that are derived, and those that other clients added. */
  StructType own() {
    return (StructType) StructType.fromJson(loaded.get("stream").get("schema").toString());
  }

  List<String> derived() {
    return Json.texts(loaded.path("stream").path("derived"));
  }

  ObjectNode request(String operation) {
    ObjectNode request = session.request(operation);
    request.set("table", reference());
    return request;
  }

  /** The call that ends a statement on this table. */
  ObjectNode commit(String operation) {
    ObjectNode request = session.commit(operation);
    request.set("table", reference());
    return request;
  }

  /** A statement reads the table as it is now; what was in the past stays so. */
  void isRead() {
    if (session.statement != null && !travelled) {
      session.statement.read(reference());
    }
  }

  boolean isTravelled() {
    return travelled;
  }

  @Override
  public String name() {
    return session.catalog + "." + String.join(".", HeadwaterCatalog.id(ident));
  }

  /** Inside a statement a table has an id that no cached DataFrame has: what one kept is not what a statement reads. */
  @Override
  public String id() {
    return session.statement == null ? null : "of a statement";
  }

  @Override
  public String version() {
    return String.valueOf(pinned());
  }

  @Override
  public StructType schema() {
    return schema;
  }

  Partitioning partitions() {
    return new Partitioning(loaded.get("partitioning"));
  }

  /** What its files are divided by, so that a task can read one partition alone. */
  Partitioning layout() {
    return isStream() ? new Partitioning(loaded.get("stream").get("buckets")) : partitions();
  }

  @Override
  public Transform[] partitioning() {
    return new Partitioning(partitionedBy(loaded)).transforms();
  }

  /** The fields of PARTITIONED BY: of a stream table those of its change log, which its serving copy may not have. */
  static JsonNode partitionedBy(JsonNode loaded) {
    return loaded.has("stream") ? loaded.get("stream").get("partitioned_by") : loaded.get("partitioning");
  }

  @Override
  public Map<String, String> properties() {
    return Json.strings(loaded.get("properties"));
  }

  @Override
  public Set<TableCapability> capabilities() {
    if (travelled) {
      return EnumSet.of(TableCapability.BATCH_READ);
    }
    return EnumSet.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.MICRO_BATCH_READ,
        TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE, TableCapability.OVERWRITE_BY_FILTER,
        TableCapability.OVERWRITE_DYNAMIC);
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    return new MetadataColumn[] {
        new RowColumn(ROW_ADDRESS, "fragment and offset of the row in this version"),
        new RowColumn(ROW_ID, "the row's id, the same in every version if the table keeps stable row ids")};
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new ReadBuilder(this, options);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return isKeyed() ? new TableWrite.UpsertBuilder(this, info) : new TableWrite.Builder(this, info);
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    if (!isStream()) {
      return () -> new RowLevel(this, info.command());
    }
    if (!isKeyed()) {
      refuse();
    }
    return () -> new StreamRowLevel(this, info.command());
  }

  @Override
  public boolean canDeleteWhere(Predicate[] predicates) {
    return !isKeyed() && new Predicates(loaded.get("filterable")).all(predicates) != null;
  }

  @Override
  public boolean truncateTable() {
    if (isStream()) {
      refuse();
    }
    return SupportsDeleteV2.super.truncateTable();
  }

  /** Says what to do instead of replacing the rows of a stream table, or of changing those of one without keys. */
  void refuse() {
    session.call(request("delete_where").put("filter", "true"));
    throw new IllegalStateException(name() + " is a stream table");
  }

  @Override
  public void deleteWhere(Predicate[] predicates) {
    String filter = new Predicates(loaded.get("filterable")).all(predicates);
    ObjectNode request = request("delete_where").put("filter", filter);
    request.set("prune", Pruning.all(partitions(), predicates));
    session.call(request);
  }

  private record RowColumn(String name, String comment) implements MetadataColumn {
    @Override
    public DataType dataType() {
      return DataTypes.LongType;
    }

    @Override
    public boolean isNullable() {
      return false;
    }
  }
}
