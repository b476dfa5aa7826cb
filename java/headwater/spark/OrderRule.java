package headwater.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Ascending$;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SortOrder$;
import org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.HintInfo;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SHUFFLE_MERGE$;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.internal.SQLConf;
import scala.Function1;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Scans of stream tables give their rows in the order of the key where a join merges them by it. A source is not asked
 * whether an order is wanted, and rows of a log are in none: who told one always would sort for every other query.
 */
final class OrderRule extends Rule<LogicalPlan> {
  private OrderRule() {}

  /** Let a session use it. */
  static void install(SparkSession session) {
    ExperimentalMethods methods = session.experimental();
    List<Rule<LogicalPlan>> rules = new ArrayList<>(CollectionConverters.asJava(methods.extraOptimizations()));
    if (rules.stream().noneMatch(OrderRule.class::isInstance)) {
      rules.add(new OrderRule());
      methods.extraOptimizations_$eq(CollectionConverters.asScala(rules).toSeq());
    }
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    return (LogicalPlan) plan.transformDown(JOINS);
  }

  private static final AbstractPartialFunction<LogicalPlan, LogicalPlan> JOINS = new AbstractPartialFunction<>() {
    @Override
    public boolean isDefinedAt(LogicalPlan node) {
      return node instanceof Join;
    }

    @Override
    public <A extends LogicalPlan, B> B applyOrElse(A node, Function1<A, B> otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      @SuppressWarnings("unchecked")
      B result = (B) merged((Join) (LogicalPlan) node);
      return result;
    }
  };

  private static Join merged(Join join) {
    var found = ExtractEquiJoinKeys$.MODULE$.unapply(join);
    if (found.isEmpty() || join.isStreaming() || !isMerged(join)) {
      return join;
    }
    Side left = side(join.left(), CollectionConverters.asJava(found.get()._2()));
    Side right = side(join.right(), CollectionConverters.asJava(found.get()._3()));
    if (left == null || right == null || !left.scan().shape().equals(right.scan().shape())) {
      return join;
    }
    LogicalPlan first = ordered(join.left(), left);
    LogicalPlan second = ordered(join.right(), right);
    return first == join.left() && second == join.right() ? join
        : new Join(first, second, join.joinType(), join.condition(), join.hint());
  }

  /** Whether Spark will sort both sides: neither is small enough to be sent to all tasks, or it is told to. */
  private static boolean isMerged(Join join) {
    boolean told = false;
    for (Option<HintInfo> hint : List.of(join.hint().leftHint(), join.hint().rightHint())) {
      if (hint.isDefined() && hint.get().strategy().isDefined()) {
        if (hint.get().strategy().get() != SHUFFLE_MERGE$.MODULE$) {
          return false;
        }
        told = true;
      }
    }
    long limit = SQLConf.get().autoBroadcastJoinThreshold();
    return told || limit < 0 || size(join.left()) > limit && size(join.right()) > limit;
  }

  private static long size(LogicalPlan plan) {
    return plan.stats().sizeInBytes().isValidLong() ? plan.stats().sizeInBytes().toLong() : Long.MAX_VALUE;
  }

  /** The scan that a side reads row by row, and which of its columns the join compares. */
  private record Side(DataSourceV2ScanRelation relation, TableScan scan, Map<String, AttributeReference> keys) {}

  private static Side side(LogicalPlan plan, List<Expression> keys) {
    if (plan instanceof Filter filter) {
      return side(filter.child(), keys);
    }
    if (plan instanceof Project project) {
      return side(project.child(), keys.stream().map(key -> meaning(project.projectList(), key)).toList());
    }
    if (!(plan instanceof DataSourceV2ScanRelation relation) || !(relation.scan() instanceof TableScan scan)
        || relation.keyGroupedPartitioning().isEmpty()) {
      return null;
    }
    Map<String, AttributeReference> columns = new HashMap<>();
    for (Expression key : keys) {
      if (!(key instanceof AttributeReference column) || !relation.outputSet().contains(column)) {
        return null;
      }
      columns.put(column.name(), column);
    }
    return new Side(relation, scan, columns);
  }

  /** What a column of a list stands for. */
  private static Expression meaning(Seq<NamedExpression> list, Expression key) {
    for (NamedExpression each : CollectionConverters.asJava(list)) {
      if (key instanceof AttributeReference column && each.exprId().equals(column.exprId())) {
        return each instanceof Alias alias ? alias.child() : (Expression) each;
      }
    }
    return key;
  }

  private static LogicalPlan ordered(LogicalPlan plan, Side side) {
    List<String> keys = side.scan().orderable();
    if (keys.isEmpty() || !side.keys().keySet().equals(java.util.Set.copyOf(keys))) {
      return plan;
    }
    return with(plan, side, keys);
  }

  private static LogicalPlan with(LogicalPlan plan, Side side, List<String> keys) {
    if (plan != side.relation()) {
      LogicalPlan child = with(plan.children().head(), side, keys);
      return (LogicalPlan) plan.withNewChildren(CollectionConverters.asScala(List.of(child)).toSeq());
    }
    List<SortOrder> order = new ArrayList<>();
    for (String key : keys) {
      order.add(SortOrder$.MODULE$.apply(side.keys().get(key), Ascending$.MODULE$,
          CollectionConverters.asScala(List.<Expression>of()).toSeq()));
    }
    DataSourceV2ScanRelation known = side.relation();
    return known.copy(known.relation(), side.scan().ordered(), known.output(), known.keyGroupedPartitioning(),
        Option.apply(CollectionConverters.asScala(order).toSeq()), known.copy$default$6(), known.copy$default$7());
  }
}
