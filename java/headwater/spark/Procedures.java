package headwater.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.SimpleProcedure;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** CALL catalog.system.name(...): planned by the worker of the driver, run on executors, one commit. */
final class Procedures {
  private static final String SYSTEM = "system";

  private static final Map<String, Definition> ALL = Map.of(
      "compact", new Definition(
          List.of(text("table"), whole("target_rows")), "fragments_removed fragments_added files_removed files_added version"),
      "create_index", new Definition(
          List.of(text("table"), text("column"), text("type"), optional("name"), optional("options")),
          "$index_name segments version"),
      "backfill", new Definition(List.of(text("table"), text("column"), text("expression")), "fragments version"),
      "cleanup", new Definition(
          List.of(text("table"), whole("older_than_hours"), flag("leftovers")),
          "bytes_removed old_versions kept_from_version"),
      "rollback", new Definition(List.of(text("table"), whole("version")), "version"),
      "drop_index", new Definition(List.of(text("table"), text("name")), "version"),
      "publish", new Definition(
          List.of(text("table"), optional("table2"), optional("table3"), optional("table4"), optional("table5"),
              optional("table6"), optional("table7"), optional("table8")),
          "rows late position version"),
      "ingest", new Definition(
          List.of(text("table"), text("source"), optional("format"), optional("name")),
          "rows files quarantined skipped position"),
      "undo", new Definition(List.of(text("table"), optional("source"), optional("file")), "position version"),
      "collect", new Definition(List.of(text("table")), "deltas files position"));

  private Procedures() {}

  static Identifier[] list(String[] namespace) {
    if (namespace.length != 1 || !namespace[0].equals(SYSTEM)) {
      return new Identifier[0];
    }
    return ALL.keySet().stream().sorted().map(name -> Identifier.of(namespace, name)).toArray(Identifier[]::new);
  }

  static UnboundProcedure load(Session session, Identifier ident) {
    boolean system = ident.namespace().length == 1 && ident.namespace()[0].equals(SYSTEM);
    Definition definition = system ? ALL.get(ident.name()) : null;
    if (definition == null) {
      throw new IllegalArgumentException("There is no procedure " + ident + ". There are: "
          + String.join(", ", ALL.keySet().stream().sorted().map(name -> "system." + name).toList()) + ".");
    }
    return new Call(session, ident.name(), definition);
  }

  private static ProcedureParameter text(String name) {
    return ProcedureParameter.in(name, DataTypes.StringType).build();
  }

  private static ProcedureParameter optional(String name) {
    return ProcedureParameter.in(name, DataTypes.StringType).defaultValue("NULL").build();
  }

  private static ProcedureParameter whole(String name) {
    return ProcedureParameter.in(name, DataTypes.LongType).defaultValue("NULL").build();
  }

  private static ProcedureParameter flag(String name) {
    return ProcedureParameter.in(name, DataTypes.BooleanType).defaultValue("false").build();
  }

  /** What a procedure takes and answers: result names are numbers, or text if they begin with $. */
  private record Definition(List<ProcedureParameter> parameters, String results) {
    StructType schema() {
      StructType schema = new StructType();
      for (String name : results.split(" ")) {
        boolean isText = name.startsWith("$");
        schema = schema.add(isText ? name.substring(1) : name, isText ? DataTypes.StringType : DataTypes.LongType);
      }
      return schema;
    }
  }

  private record Call(Session session, String name, Definition definition) implements SimpleProcedure {
    @Override
    public ProcedureParameter[] parameters() {
      return definition.parameters().toArray(new ProcedureParameter[0]);
    }

    @Override
    public boolean isDeterministic() {
      return false;
    }

    @Override
    public Iterator<Scan> call(InternalRow input) {
      ObjectNode arguments = arguments(input);
      JavaSparkContext spark = JavaSparkContext.fromSparkContext(SparkSession.active().sparkContext());
      ObjectNode request = session.request("job_plan", table(arguments)).put("job", name);
      request.set("arguments", arguments);
      JsonNode planned = session.call(request.put("parallelism", spark.defaultParallelism()));
      ObjectNode commit = session.request("job_commit").put("job", name);
      commit.set("table", planned.get("table"));
      commit.set("arguments", arguments);
      commit.put("parallelism", spark.defaultParallelism());
      commit.set("results", run(spark, requests(planned)));
      JsonNode answer = session.call(commit, tasks -> run(spark, tasks));
      return List.<Scan>of(new Answer(definition.schema(), answer)).iterator();
    }

    private String[] table(ObjectNode arguments) {
      String[] names = arguments.get("table").asText().split("\\.");
      boolean qualified = names.length > 1 && names[0].equals(session.catalog);
      return qualified ? java.util.Arrays.copyOfRange(names, 1, names.length) : names;
    }

    private ObjectNode arguments(InternalRow input) {
      ObjectNode arguments = Json.object();
      for (int i = 0; i < definition.parameters().size(); i++) {
        ProcedureParameter parameter = definition.parameters().get(i);
        DataType type = parameter.dataType();
        if (input.isNullAt(i)) {
          arguments.putNull(parameter.name());
        } else if (type.equals(DataTypes.LongType)) {
          arguments.put(parameter.name(), input.getLong(i));
        } else if (type.equals(DataTypes.BooleanType)) {
          arguments.put(parameter.name(), input.getBoolean(i));
        } else {
          arguments.put(parameter.name(), input.getUTF8String(i).toString());
        }
      }
      return arguments;
    }

    private ArrayNode requests(JsonNode planned) {
      ArrayNode requests = Json.MAPPER.createArrayNode();
      for (JsonNode task : planned.get("tasks")) {
        ObjectNode request = requests.addObject().put("op", "job_run").put("job", name);
        request.set("table", planned.get("table"));
        request.set("task", task);
      }
      return requests;
    }

    /** Calls of the workers of executors, a task of Spark each, and their answers. */
    private ArrayNode run(JavaSparkContext spark, JsonNode requests) {
      ArrayNode answers = Json.MAPPER.createArrayNode();
      List<String> tasks = new ArrayList<>();
      requests.forEach(request -> tasks.add(request.toString()));
      if (!tasks.isEmpty()) {
        String python = session.python;
        spark.parallelize(tasks, tasks.size())
            .map(task -> Worker.of(python).call((ObjectNode) Json.parse(task)).toString()).collect()
            .forEach(answer -> answers.add(Json.parse(answer)));
      }
      return answers;
    }
  }

  /** The one row a procedure answers. */
  private record Answer(StructType schema, JsonNode values) implements LocalScan {
    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public InternalRow[] rows() {
      Object[] row = new Object[schema.size()];
      for (int i = 0; i < row.length; i++) {
        StructField field = schema.fields()[i];
        JsonNode value = values.get(field.name());
        row[i] = field.dataType().equals(DataTypes.LongType) ? (Object) value.asLong()
            : UTF8String.fromString(value.asText());
      }
      return new InternalRow[] {new GenericInternalRow(row)};
    }
  }
}
