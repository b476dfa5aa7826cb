package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TransactionalCatalogPlugin;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.catalog.transactions.Transaction;
import org.apache.spark.sql.connector.catalog.transactions.TransactionInfo;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A Headwater catalog in Spark SQL: namespaces, tables, procedures, each call answered by the Python worker. */
public final class HeadwaterCatalog implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog,
    FunctionCatalog, TransactionalCatalogPlugin {
  private String name;
  private Session session;
  private HeadwaterCatalog outside = this;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.session = new Session(name, options);
    JoinRule.install(SparkSession.active());
    OrderRule.install(SparkSession.active());
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Transaction beginTransaction(TransactionInfo info) {
    return new Statement(this);
  }

  HeadwaterCatalog within(Statement statement) {
    HeadwaterCatalog inside = new HeadwaterCatalog();
    inside.name = name;
    inside.session = session.within(statement);
    inside.outside = outside;
    return inside;
  }

  /**
   * Inside a statement it is the same catalog: where a DataFrame reads the table that it is written to, Spark finds the
   * relation of the one by the catalog of the other, and gives it new columns if they differ.
   */
  @Override
  public boolean equals(Object other) {
    return other instanceof HeadwaterCatalog catalog && catalog.outside == outside;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(outside);
  }

  Session session() {
    return session;
  }

  // Namespaces

  @Override
  public String[][] listNamespaces() throws NoSuchNamespaceException {
    return listNamespaces(new String[0]);
  }

  @Override
  public String[][] listNamespaces(String[] parent) throws NoSuchNamespaceException {
    JsonNode names = inNamespace(parent, session.request("list_namespaces", parent));
    String[][] found = new String[names.size()][];
    for (int i = 0; i < found.length; i++) {
      found[i] = Arrays.copyOf(parent, parent.length + 1);
      found[i][parent.length] = names.get(i).asText();
    }
    return found;
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    return namespace.length == 0 ? Map.of()
        : Json.strings(inNamespace(namespace, session.request("describe_namespace", namespace)));
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> properties)
      throws NamespaceAlreadyExistsException {
    ObjectNode request = session.request("create_namespace", namespace);
    request.set("properties", Json.object(properties));
    try {
      session.call(request);
    } catch (HeadwaterException error) {
      if (error.code() == HeadwaterException.NAMESPACE_EXISTS) {
        throw new NamespaceAlreadyExistsException(namespace);
      }
      throw error;
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) throws NoSuchNamespaceException {
    Map<String, String> properties = new LinkedHashMap<>();
    Set<String> removed = new LinkedHashSet<>();
    for (NamespaceChange change : changes) {
      if (change instanceof NamespaceChange.SetProperty set) {
        properties.put(set.property(), set.value());
        removed.remove(set.property());
      } else if (change instanceof NamespaceChange.RemoveProperty remove) {
        properties.remove(remove.property());
        removed.add(remove.property());
      }
    }
    ObjectNode request = session.request("alter_namespace", namespace);
    request.set("properties", Json.object(properties));
    request.set("removed", Json.array(removed.toArray(new String[0])));
    inNamespace(namespace, request);
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    ObjectNode request = session.request("drop_namespace", namespace).put("cascade", cascade);
    try {
      inNamespace(namespace, request);
      return true;
    } catch (HeadwaterException error) {
      if (error.code() == HeadwaterException.NAMESPACE_NOT_EMPTY) {
        throw new NonEmptyNamespaceException(namespace);
      }
      throw error;
    }
  }

  private JsonNode inNamespace(String[] namespace, ObjectNode request) throws NoSuchNamespaceException {
    try {
      return session.call(request);
    } catch (HeadwaterException error) {
      if (error.code() == HeadwaterException.NAMESPACE_NOT_FOUND) {
        throw new NoSuchNamespaceException(namespace);
      }
      throw error;
    }
  }

  // Tables

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    JsonNode names = inNamespace(namespace, session.request("list_tables", namespace));
    Identifier[] found = new Identifier[names.size()];
    for (int i = 0; i < found.length; i++) {
      found[i] = Identifier.of(namespace, names.get(i).asText());
    }
    return found;
  }

  @Override
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return table(ident, onTable(ident, session.request("load_table", id(ident))), false);
  }

  @Override
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    return table(ident, onTable(ident, session.request("load_table", id(ident)).put("version", version)), true);
  }

  @Override
  public Table loadTable(Identifier ident, long timestamp) throws NoSuchTableException {
    return table(ident, onTable(ident, session.request("load_table", id(ident)).put("micros", timestamp)), true);
  }

  @Override
  public Changelog loadChangelog(Identifier ident, ChangelogContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    return new TableChanges(loadTableAs(ident), context);
  }

  HeadwaterTable loadTableAs(Identifier ident) throws NoSuchTableException {
    return (HeadwaterTable) loadTable(ident);
  }

  @Override
  public Table createTable(Identifier ident, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    ObjectNode request = definition("create_table", ident, info);
    return table(ident, onCreate(ident, request), false);
  }

  @Override
  public Table createTable(Identifier ident, Column[] columns, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return createTable(ident, info(columns, partitions, properties));
  }

  @Override
  public StagedTable stageCreate(Identifier ident, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return new StagedLanceTable(this, ident, onCreate(ident, definition("stage_create", ident, info)), true);
  }

  @Override
  public StagedTable stageReplace(Identifier ident, TableInfo info) throws NoSuchTableException {
    return new StagedLanceTable(this, ident, onTable(ident, definition("stage_replace", ident, info)), false);
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier ident, TableInfo info) throws NoSuchNamespaceException {
    try {
      return tableExists(ident) ? stageReplace(ident, info) : stageCreate(ident, info);
    } catch (NoSuchTableException | TableAlreadyExistsException error) {
      throw new HeadwaterException(14, "The table " + ident + " was created or dropped by another session meanwhile.");
    }
  }

  @Override
  public StagedTable stageCreate(Identifier ident, Column[] columns, Transform[] partitions,
      Map<String, String> properties) throws TableAlreadyExistsException, NoSuchNamespaceException {
    return stageCreate(ident, info(columns, partitions, properties));
  }

  @Override
  public StagedTable stageReplace(Identifier ident, Column[] columns, Transform[] partitions,
      Map<String, String> properties) throws NoSuchTableException {
    return stageReplace(ident, info(columns, partitions, properties));
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier ident, Column[] columns, Transform[] partitions,
      Map<String, String> properties) throws NoSuchNamespaceException {
    return stageCreateOrReplace(ident, info(columns, partitions, properties));
  }

  @Override
  public Table alterTable(Identifier ident, TableChange... changes) throws NoSuchTableException {
    ObjectNode request = session.request("alter_table", id(ident));
    ArrayNode list = request.putArray("changes");
    for (TableChange change : changes) {
      list.add(Changes.toJson(change));
    }
    try {
      return table(ident, onTable(ident, request), false);
    } catch (HeadwaterException error) { // Spark wraps an IllegalArgumentException here, and its message is lost
      throw new UnsupportedOperationException(error.getMessage());
    }
  }

  @Override
  public boolean dropTable(Identifier ident) {
    try {
      session.call(session.request("drop_table", id(ident)));
      return true;
    } catch (HeadwaterException error) {
      if (error.code() == HeadwaterException.TABLE_NOT_FOUND || error.code() == HeadwaterException.NAMESPACE_NOT_FOUND) {
        return false;
      }
      throw error;
    }
  }

  @Override
  public boolean purgeTable(Identifier ident) {
    return dropTable(ident);
  }

  @Override
  public void renameTable(Identifier from, Identifier to) throws NoSuchTableException, TableAlreadyExistsException {
    ObjectNode request = session.request("rename_table", id(from));
    request.set("new_id", Json.array(id(within(to))));
    try {
      session.call(request);
    } catch (HeadwaterException error) { // a namespace that is not found is the new one's
      if (error.code() == HeadwaterException.TABLE_NOT_FOUND) {
        throw new NoSuchTableException(from);
      }
      if (error.code() == HeadwaterException.TABLE_EXISTS) {
        throw new TableAlreadyExistsException(to);
      }
      throw error;
    }
  }

  /** Of `RENAME TO lake.a.t` Spark leaves the catalog's own name in the new one; a namespace may have that name too. */
  private Identifier within(Identifier to) {
    String[] names = to.namespace();
    boolean isOurs = names.length > 0 && names[0].equals(name()) && !namespaceExists(names);
    return isOurs ? Identifier.of(Arrays.copyOfRange(names, 1, names.length), to.name()) : to;
  }

  // Procedures

  @Override
  public UnboundProcedure loadProcedure(Identifier ident) {
    return Procedures.load(session, ident);
  }

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    return Procedures.list(namespace);
  }

  // Partition transforms, which Spark looks up here to bring rows of a partition together

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return namespace.length > 0 ? new Identifier[0]
        : Transforms.NAMES.stream().sorted().map(each -> Identifier.of(namespace, each)).toArray(Identifier[]::new);
  }

  @Override
  public UnboundFunction loadFunction(Identifier ident) throws NoSuchFunctionException {
    if (ident.namespace().length > 0 || !Transforms.NAMES.contains(ident.name())) {
      throw new NoSuchFunctionException(ident);
    }
    return new Transforms(ident.name());
  }

  // How requests and answers look

  private static TableInfo info(Column[] columns, Transform[] partitions, Map<String, String> properties) {
    return new TableInfo.Builder().withColumns(columns).withPartitions(partitions).withProperties(properties).build();
  }

  private ObjectNode definition(String operation, Identifier ident, TableInfo info) {
    ObjectNode request = session.request(operation, id(ident));
    request.set("schema", Json.parse(info.schema().json()));
    request.set("properties", Json.object(info.properties()));
    request.set("partitioning", Partitioning.toJson(info.partitions()));
    return request;
  }

  private HeadwaterTable table(Identifier ident, JsonNode loaded, boolean travelled) {
    StructType schema = (StructType) StructType.fromJson(loaded.get("schema").toString());
    if (ident instanceof DefaultSource.Columns chosen) {
      return new ChosenColumns(session, chosen.ident(), chosen.of(schema), loaded, travelled);
    }
    return HeadwaterTable.partitionedBy(loaded).isEmpty() ? new HeadwaterTable(session, ident, schema, loaded, travelled)
        : new PartitionedTable(session, ident, schema, loaded, travelled);
  }

  private JsonNode onTable(Identifier ident, ObjectNode request) throws NoSuchTableException {
    try {
      return session.call(request);
    } catch (HeadwaterException error) {
      if (error.code() == HeadwaterException.TABLE_NOT_FOUND || error.code() == HeadwaterException.NAMESPACE_NOT_FOUND) {
        throw new NoSuchTableException(ident);
      }
      throw error;
    }
  }

  private JsonNode onCreate(Identifier ident, ObjectNode request)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    try {
      return session.call(request);
    } catch (HeadwaterException error) {
      if (error.code() == HeadwaterException.TABLE_EXISTS) {
        throw new TableAlreadyExistsException(ident);
      }
      if (error.code() == HeadwaterException.NAMESPACE_NOT_FOUND) {
        throw new NoSuchNamespaceException(ident.namespace());
      }
      throw error;
    }
  }

  static String[] id(Identifier ident) {
    String[] id = Arrays.copyOf(ident.namespace(), ident.namespace().length + 1);
    id[id.length - 1] = ident.name();
    return id;
  }
}
