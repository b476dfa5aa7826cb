package headwater.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.AnalysisHelper;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.InsertIntoStatement;
import org.apache.spark.sql.catalyst.plans.logical.InsertOnlyMerge;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeRows;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.TransactionalWrite;
import org.apache.spark.sql.catalyst.plans.logical.WriteDelta;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * What a statement on a stream table says and Spark does not pass on. Which columns an INSERT gives: Spark fills the
 * others with NULL before a source sees a row, so the names go along as an option of the write.
 */
final class StreamRules {
  /** The option: columns as JSON, a number of columns from the left, or one of the words below. */
  static final String GIVEN = "headwater.given";
  /** Rows that a MERGE inserts: whole ones, whose keys are new. */
  static final String NEW_ROWS = "new";

  private StreamRules() {}

  static void inject(SparkSessionExtensions extensions) {
    extensions.injectHintResolutionRule(always(new Pinned()));
    extensions.injectHintResolutionRule(always(new Before()));
    extensions.injectResolutionRule(always(new During()));
  }

  private static Function1<SparkSession, Rule<LogicalPlan>> always(Rule<LogicalPlan> rule) {
    return new AbstractFunction1<>() {
      @Override
      public Rule<LogicalPlan> apply(SparkSession session) {
        return rule;
      }
    };
  }

  /**
   * A DataFrame of a table at VERSION AS OF, written elsewhere: Spark would load the table anew inside the statement's
   * transaction, without its version. A relation that names no catalog stays as it is.
   */
  private static final class Pinned extends Rule<LogicalPlan> {
    private static final AbstractPartialFunction<LogicalPlan, LogicalPlan> KEPT = new AbstractPartialFunction<>() {
      @Override
      public boolean isDefinedAt(LogicalPlan node) {
        return node instanceof DataSourceV2Relation relation && relation.catalog().isDefined()
            && relation.table() instanceof HeadwaterTable table && table.isTravelled();
      }

      @Override
      public <A extends LogicalPlan, B> B applyOrElse(A node, Function1<A, B> otherwise) {
        if (!isDefinedAt(node)) {
          return otherwise.apply(node);
        }
        DataSourceV2Relation relation = (DataSourceV2Relation) (LogicalPlan) node;
        @SuppressWarnings("unchecked")
        B kept = (B) relation.copy(relation.table(), relation.output(), Option.empty(), Option.empty(),
            relation.options(), relation.timeTravelSpec());
        return kept;
      }
    };

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      if (!(plan instanceof TransactionalWrite)) {
        return plan;
      }
      return AnalysisHelper.allowInvokingTransformsInAnalyzer(new AbstractFunction0<>() {
        @Override
        public LogicalPlan apply() {
          return (LogicalPlan) plan.transformWithSubqueries(KEPT);
        }
      });
    }
  }

  /**
   * Writers of DataFrames make a plan of the query as it was written down; this is before its columns are filled up. It
   * has been analysed when the frame was made, so its columns can be asked for.
   */
  private static final class Before extends Rewriting {
    @Override
    LogicalPlan rewritten(LogicalPlan plan) {
      if (!(plan instanceof AppendData append) || append.write().isDefined()
          || append.writeOptions().contains(GIVEN) || isKnown(append.table()) || !isOurs(append.table())) {
        return null;
      }
      LogicalPlan query = append.query().resolved() ? append.query()
          : SparkSession.active().sessionState().analyzer().execute(append.query());
      if (!query.resolved()) {
        return null;
      }
      Seq<Attribute> columns = query.output();
      String given = append.isByName() ? names(columns) : String.valueOf(columns.size());
      // options of the table and of the write are the same ones, where there are both
      boolean both = append.table() instanceof DataSourceV2Relation relation && !relation.options().isEmpty();
      NamedRelation table = both ? with((DataSourceV2Relation) append.table(), given) : append.table();
      var options = both && append.writeOptions().isEmpty() ? append.writeOptions()
          : append.writeOptions().updated(GIVEN, given);
      return append.copy(table, append.query(), options, append.isByName(), append.withSchemaEvolution(),
          append.write(), append.analyzedQuery());
    }
  }

  /** Statements, once their table and query are resolved; this is before Spark makes a write of them. */
  private static final class During extends Rewriting {
    @Override
    LogicalPlan rewritten(LogicalPlan plan) {
      if (plan instanceof InsertIntoStatement insert && insert.query().resolved() && stream(insert.table()) != null
          && !isKnown(insert.table())) {
        Seq<String> columns = named(insert, stream(insert.table()));
        return insert.copy(with((DataSourceV2Relation) insert.table(), given(insert, columns)), insert.partitionSpec(),
            columns, insert.query(), insert.overwrite(), insert.ifPartitionNotExists(),
            insert.byName(), insert.replaceCriteriaOpt(), insert.withSchemaEvolution());
      }
      if (plan instanceof InsertOnlyMerge merge && merge.write().isEmpty() && stream(merge.table()) != null
          && !isKnown(merge.table())) {
        checkDerived(stream(merge.table()), merge.query());
        NamedRelation marked = with((DataSourceV2Relation) merge.table(), NEW_ROWS);
        return merge.copy(marked, merge.query(), merge.write(), merge.analyzedQuery());
      }
      if (plan instanceof WriteDelta delta) {
        checkDerived(stream(delta.originalTable()), delta.query());
      }
      return plan instanceof DeleteFromTable delete ? ofAllRows(delete) : null;
    }

    /** The columns that an INSERT names. Where it gives a whole row, those of the log: nobody gives the other ones. */
    private static Seq<String> named(InsertIntoStatement insert, HeadwaterTable table) {
      String[] own = table.own().fieldNames();
      boolean isWhole = insert.userSpecifiedCols().isEmpty() && !insert.byName()
          && own.length < table.schema.length() && insert.query().output().size() == own.length;
      return isWhole ? CollectionConverters.asScala(List.of(own)).toSeq() : insert.userSpecifiedCols();
    }

    private static String given(InsertIntoStatement insert, Seq<String> named) {
      if (!named.isEmpty()) {
        return Json.array(CollectionConverters.asJava(named).toArray(new String[0])).toString();
      }
      Seq<Attribute> columns = insert.query().output();
      return insert.byName() ? names(columns) : String.valueOf(columns.size());
    }

    /** DELETE without a condition is, for Spark, the same as TRUNCATE, and that is refused. */
    private static LogicalPlan ofAllRows(DeleteFromTable delete) {
      if (!delete.condition().equals(Literal.TrueLiteral()) || !delete.table().resolved()) {
        return null;
      }
      HeadwaterTable table = null;
      for (LogicalPlan leaf : CollectionConverters.asJava(delete.table().collectLeaves())) {
        table = stream(leaf);
      }
      if (table == null || !table.isKeyed()) {
        return null;
      }
      for (Attribute column : CollectionConverters.asJava(delete.table().output())) {
        if (column.name().equals(table.keys().get(0))) {
          return delete.copy(delete.table(), new IsNotNull(column));
        }
      }
      return null;
    }

    /** What UPDATE and MERGE give for derived columns: their own old value and NULL are what Spark fills in itself. */
    private static void checkDerived(HeadwaterTable table, LogicalPlan query) {
      if (table == null || table.derived().isEmpty()) {
        return;
      }
      Set<ExprId> own = ownColumns(query);
      if (query instanceof Project project) {
        for (NamedExpression each : CollectionConverters.asJava(project.projectList())) {
          checkDerived(table, each.name(), each instanceof Alias set ? set.child() : (Expression) each, own);
        }
      } else if (query instanceof MergeRows merge) {
        List<Attribute> columns = CollectionConverters.asJava(merge.output());
        for (Seq<Expression> row : CollectionConverters.asJava(merge.outputs())) {
          for (int i = 0; i < columns.size(); i++) {
            checkDerived(table, columns.get(i).name(), row.apply(i), own);
          }
        }
      }
    }

    private static void checkDerived(HeadwaterTable table, String column, Expression value, Set<ExprId> own) {
      Expression plain = value;
      while (plain instanceof Cast || plain instanceof Alias) {
        plain = plain.children().head();
      }
      boolean isNull = plain instanceof Literal literal && literal.value() == null;
      boolean isKept = plain instanceof Attribute kept && kept.name().equals(column) && own.contains(kept.exprId());
      if (table.derived().contains(column) && !isNull && !isKept) {
        throw new HeadwaterException(HeadwaterException.INVALID_INPUT, "The column " + column + " of "
            + table.name() + " is derived from others: it cannot be set. Name the columns to set, without it.");
      }
    }

    /** The columns of the rows that are changed, as the statement reads them. */
    private static Set<ExprId> ownColumns(LogicalPlan query) {
      Set<ExprId> own = new HashSet<>();
      for (LogicalPlan leaf : CollectionConverters.asJava(query.collectLeaves())) {
        if (leaf instanceof DataSourceV2Relation relation && relation.table() instanceof RowLevelOperationTable) {
          CollectionConverters.asJava(relation.output()).forEach(column -> own.add(column.exprId()));
        }
      }
      return own;
    }
  }

  private abstract static class Rewriting extends Rule<LogicalPlan> {
    /** The node as it should be; null: as it is. */
    abstract LogicalPlan rewritten(LogicalPlan plan);

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      return plan.resolveOperators(new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
        @Override
        public boolean isDefinedAt(LogicalPlan node) {
          return rewritten(node) != null;
        }

        @Override
        public <A extends LogicalPlan, B> B applyOrElse(A node, Function1<A, B> otherwise) {
          LogicalPlan found = rewritten(node);
          @SuppressWarnings("unchecked")
          B same = found == null ? otherwise.apply(node) : (B) found;
          return same;
        }
      });
    }
  }

  private static HeadwaterTable stream(Object plan) {
    return plan instanceof DataSourceV2Relation relation && relation.table() instanceof HeadwaterTable table
        && table.isStream() ? table : null;
  }

  private static boolean isKnown(Object plan) {
    return plan instanceof DataSourceV2Relation relation && relation.options().containsKey(GIVEN);
  }

  /** Whether a table, resolved or not, is of a Headwater catalog. */
  private static boolean isOurs(Object plan) {
    if (plan instanceof DataSourceV2Relation relation) {
      return relation.table() instanceof HeadwaterTable;
    }
    if (!(plan instanceof UnresolvedRelation relation)) {
      return false;
    }
    var manager = SparkSession.active().sessionState().catalogManager();
    String first = relation.multipartIdentifier().head();
    boolean named = relation.multipartIdentifier().size() > 1 && manager.isCatalogRegistered(first);
    CatalogPlugin catalog = named ? manager.catalog(first) : manager.currentCatalog();
    return catalog instanceof HeadwaterCatalog;
  }

  private static DataSourceV2Relation with(DataSourceV2Relation relation, String given) {
    Map<String, String> options = new HashMap<>(relation.options().asCaseSensitiveMap());
    options.put(GIVEN, given);
    return relation.copy(relation.table(), relation.output(), relation.catalog(), relation.identifier(),
        new CaseInsensitiveStringMap(options), relation.timeTravelSpec());
  }

  private static String names(Seq<Attribute> columns) {
    List<String> names = new ArrayList<>();
    for (Attribute column : CollectionConverters.asJava(columns)) {
      names.add(column.name());
    }
    return Json.array(names.toArray(new String[0])).toString();
  }
}
