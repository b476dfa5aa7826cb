package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/** CREATE or REPLACE TABLE AS SELECT: rows are written first, one commit then makes schema and rows visible. */
final class StagedLanceTable implements StagedTable, SupportsWrite {
  final HeadwaterCatalog catalog;
  final Identifier ident;
  final JsonNode staged;
  private final boolean created;
  private final StructType schema;
  private final ArrayNode fragments = Json.MAPPER.createArrayNode();

  StagedLanceTable(HeadwaterCatalog catalog, Identifier ident, JsonNode staged, boolean created) {
    this.catalog = catalog;
    this.ident = ident;
    this.staged = staged;
    this.created = created;
    this.schema = (StructType) StructType.fromJson(staged.get("schema").toString());
  }

  void add(JsonNode written) {
    written.forEach(fragments::add);
  }

  @Override
  public String name() {
    return catalog.name() + "." + String.join(".", HeadwaterCatalog.id(ident));
  }

  @Override
  public StructType schema() {
    return schema;
  }

  Partitioning partitions() {
    return new Partitioning(staged.get("partitioning"));
  }

  @Override
  public Transform[] partitioning() {
    return partitions().transforms();
  }

  @Override
  public Map<String, String> properties() {
    return Map.of("provider", "headwater");
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_WRITE, TableCapability.TRUNCATE);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new TableWrite.Builder(this, info);
  }

  @Override
  public void commitStagedChanges() {
    ObjectNode request = catalog.session().commit("commit_staged");
    request.set("table", staged.get("table"));
    request.set("arrow", staged.get("arrow"));
    request.set("fragments", fragments);
    catalog.session().call(request);
  }

  @Override
  public void abortStagedChanges() {
    if (created && !staged.get("table").has("fold")) { // a stream table is not there before its commit
      catalog.dropTable(ident);
    }
  }
}
