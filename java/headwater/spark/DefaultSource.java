package headwater.spark;

import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsCatalogOptions;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** `format("headwater")` with the option `catalog` and the table's name as path: the same tables as in SQL. */
public final class DefaultSource implements SupportsCatalogOptions, DataSourceRegister {
  @Override
  public String shortName() {
    return "headwater";
  }

  @Override
  public String extractCatalog(CaseInsensitiveStringMap options) {
    String catalog = options.get("catalog");
    if (catalog == null) {
      throw new IllegalArgumentException("format(\"headwater\") needs .option(\"catalog\", name).");
    }
    return catalog;
  }

  @Override
  public Identifier extractIdentifier(CaseInsensitiveStringMap options) {
    String path = options.containsKey("path") ? options.get("path") : options.get("table");
    if (path == null) {
      throw new IllegalArgumentException("format(\"headwater\") needs the table's name: .load(\"namespace.table\").");
    }
    String[] names = path.split("\\.");
    Identifier ident = Identifier.of(Arrays.copyOf(names, names.length - 1), names[names.length - 1]);
    String columns = options.get("columns");
    return columns == null ? ident : new Columns(ident, columns);
  }

  /** A table's name with the columns to read of it, which Spark hands to the catalog as it is. */
  record Columns(Identifier ident, String columns) implements Identifier {
    @Override
    public String[] namespace() {
      return ident.namespace();
    }

    @Override
    public String name() {
      return ident.name();
    }

    /** The columns in the order they were named; a name that the table does not have is refused. */
    StructType of(StructType schema) {
      StructType chosen = new StructType();
      for (String part : columns.split(",", -1)) {
        String name = part.strip();
        if (!schema.exists(field -> field.name().equals(name))) {
          throw new HeadwaterException(HeadwaterException.COLUMN_NOT_FOUND, "The table " + ident + " has no column "
              + "'" + name + "', which the option columns names. It has " + String.join(", ", schema.fieldNames())
              + ".");
        }
        chosen = chosen.add(schema.apply(name));
      }
      return chosen;
    }
  }

  @Override
  public Optional<String> extractTimeTravelVersion(CaseInsensitiveStringMap options) {
    return Optional.ofNullable(options.get("versionAsOf"));
  }

  @Override
  public Optional<String> extractTimeTravelTimestamp(CaseInsensitiveStringMap options) {
    return Optional.ofNullable(options.get("timestampAsOf"));
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return load(options).schema();
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return load(new CaseInsensitiveStringMap(properties));
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  private Table load(CaseInsensitiveStringMap options) {
    HeadwaterCatalog catalog = catalog(extractCatalog(options));
    try {
      return catalog.loadTable(extractIdentifier(options));
    } catch (NoSuchTableException error) {
      throw new HeadwaterException(HeadwaterException.TABLE_NOT_FOUND, error.getMessage());
    }
  }

  static HeadwaterCatalog catalog(String name) {
    var manager = SparkSession.active().sessionState().catalogManager();
    var found = manager.isCatalogRegistered(name) ? manager.catalog(name) : null;
    if (found instanceof HeadwaterCatalog catalog) {
      return catalog;
    }
    throw new HeadwaterException(HeadwaterException.INVALID_INPUT,
        "The session has no Headwater catalog " + name + ": prepare it with headwater.spark.configure().");
  }
}
