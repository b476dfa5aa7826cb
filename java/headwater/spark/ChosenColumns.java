package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.types.StructType;

/** Some columns of a table, as the option `columns` names them: for reading, as a table or as a stream. */
final class ChosenColumns extends HeadwaterTable {
  ChosenColumns(Session session, Identifier ident, StructType schema, JsonNode loaded, boolean travelled) {
    super(session, ident, schema, loaded, travelled);
  }

  @Override
  public Set<TableCapability> capabilities() {
    Set<TableCapability> all = EnumSet.copyOf(super.capabilities());
    all.retainAll(EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ));
    return all;
  }
}
