package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/** A table that Python has pinned, as a frame, in a session that knows no catalog of it: headwater.spark.table_frames. */
public final class PinnedFrame {
  private static final String NOWHERE = "pinned";

  private PinnedFrame() {}

  /** `told`: what a catalog would have answered of the table (`load_table`). It can only be read. */
  public static Dataset<Row> of(SparkSession spark, String told) {
    JsonNode loaded = Json.parse(told);
    List<String> names = Json.texts(loaded.get("table").get("id"));
    int last = names.size() - 1;
    Identifier ident = Identifier.of(names.subList(0, last).toArray(new String[0]), names.get(last));
    StructType schema = (StructType) DataType.fromJson(loaded.get("schema").toString());
    Session session = new Session(NOWHERE, CaseInsensitiveStringMap.empty());
    HeadwaterTable table = new HeadwaterTable(session, ident, schema, loaded, true);
    return Dataset.ofRows(spark, DataSourceV2Relation.create(table, Option.empty(), Option.empty()));
  }
}
