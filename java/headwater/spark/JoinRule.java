package headwater.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.DynamicPruningSubquery;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys$;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.LeftOuter$;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Subquery;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.dynamicpruning.PartitionPruning$;
import org.apache.spark.sql.internal.SQLConf;
import scala.Function1;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * One side of a join tells the scan of the other which keys it has, when the query runs. Spark does so for partition
 * columns, and only where it sees the filter that makes a side small; ours went to Lance. Here the scan says itself
 * that it is small, and every column of whole numbers or dates can be told about.
 */
final class JoinRule extends Rule<LogicalPlan> {
  /** From how many rows on a scan is worth telling keys to: below, what is saved is less than waiting for them. */
  private static final String WORTH = "spark.headwater.join_keys.rows";
  private static final String WORTH_DEFAULT = "1000000";
  /** So few rows are narrowed all the same, because they may tell their keys in turn; but nothing is read for it. */
  private static final long LINK = 100_000;
  /** A scan of so many rows is read a second time for its keys if no join broadcasts it. */
  private static final long READ_TWICE = 200_000;
  /** And only for so many times as many rows. */
  private static final long GAIN = 8;
  private static final TreeNodeTag<Object> SEEN = new TreeNodeTag<>("headwater.join");

  private JoinRule() {}

  /** Let a session use it. */
  static void install(SparkSession session) {
    ExperimentalMethods methods = session.experimental();
    List<Rule<LogicalPlan>> rules = new ArrayList<>(CollectionConverters.asJava(methods.extraOptimizations()));
    if (rules.stream().noneMatch(JoinRule.class::isInstance)) {
      rules.add(new JoinRule());
      methods.extraOptimizations_$eq(CollectionConverters.asScala(rules).toSeq());
    }
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    boolean skipped = plan instanceof Subquery subquery && subquery.correlated();
    return skipped || !conf().dynamicPartitionPruningEnabled() ? plan : (LogicalPlan) plan.transformDown(JOINS);
  }

  private static final AbstractPartialFunction<LogicalPlan, LogicalPlan> JOINS = new AbstractPartialFunction<>() {
    @Override
    public boolean isDefinedAt(LogicalPlan node) {
      return node instanceof Join join && join.getTagValue(SEEN).isEmpty();
    }

    @Override
    public <A extends LogicalPlan, B> B applyOrElse(A node, Function1<A, B> otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      Join told = told((Join) (LogicalPlan) node);
      told.setTagValue(SEEN, true);
      @SuppressWarnings("unchecked")
      B result = (B) told;
      return result;
    }
  };

  private static Join told(Join join) {
    var found = ExtractEquiJoinKeys$.MODULE$.unapply(join);
    if (found.isEmpty() || join.isStreaming() || !join.deterministic()) {
      return join;
    }
    LogicalPlan left = join.left();
    LogicalPlan right = join.right();
    for (int i = 0; i < found.get()._2().size(); i++) {
      Expression leftKey = found.get()._2().apply(i);
      Expression rightKey = found.get()._3().apply(i);
      LogicalPlan byRight = prunesLeft(join.joinType()) ? narrowed(left, leftKey, keysOf(join.right(), rightKey)) : null;
      LogicalPlan byLeft = byRight == null && prunesRight(join.joinType())
          ? narrowed(right, rightKey, keysOf(join.left(), leftKey)) : null;
      left = byRight == null ? left : byRight;
      right = byLeft == null ? right : byLeft;
    }
    return left == join.left() && right == join.right() ? join
        : new Join(left, right, join.joinType(), join.condition(), join.hint());
  }

  /** Rows of the left that match nothing on the right are not wanted. */
  private static boolean prunesLeft(JoinType type) {
    return type == Inner$.MODULE$ || type == LeftSemi$.MODULE$ || type == RightOuter$.MODULE$;
  }

  private static boolean prunesRight(JoinType type) {
    return type == Inner$.MODULE$ || type == LeftSemi$.MODULE$ || type == LeftOuter$.MODULE$
        || type == LeftAnti$.MODULE$;
  }

  /** A scan with what narrows it, and which of its columns has the keys. */
  private record Source(LogicalPlan plan, AttributeReference key) {}

  /** The scan that a column of a plan comes from: it has all values that the column has, but NULL. */
  private static Source source(LogicalPlan plan, Expression key) {
    if (!(key instanceof AttributeReference column) || !plan.outputSet().contains(column)) {
      return null;
    }
    if (rows(plan) >= 0) {
      return new Source(plan, column);
    }
    if (plan instanceof Filter filter) {
      return source(filter.child(), column);
    }
    if (plan instanceof Project project) {
      return source(project.child(), meaning(project.projectList(), column));
    }
    if (plan instanceof Aggregate aggregate) {
      return source(aggregate.child(), meaning(aggregate.aggregateExpressions(), column));
    }
    if (plan instanceof Join join) {
      return source(join.left().outputSet().contains(column) ? join.left() : join.right(), column);
    }
    return null;
  }

  /** About how many rows a scan has, narrowed or not; -1 for any other plan. */
  private static long rows(LogicalPlan plan) {
    if (plan instanceof Project || plan instanceof Filter) {
      boolean plain = CollectionConverters.asJava(plan.expressions()).stream()
          .allMatch(each -> each instanceof DynamicPruningSubquery || each.deterministic() && !has(each));
      return plain ? rows(plan.children().head()) : -1;
    }
    if (plan instanceof LocalRelation local) {
      return local.data().size();
    }
    if (plan instanceof DataSourceV2ScanRelation relation) {
      return relation.scan() instanceof TableScan table ? table.matching()
          : relation.scan() instanceof FewRowsScan few ? few.count() : -1;
    }
    return -1;
  }

  private static boolean has(Expression expression) {
    return expression instanceof PlanExpression<?>
        || CollectionConverters.asJava(expression.children()).stream().anyMatch(JoinRule::has);
  }

  /** Whether something makes a scan smaller than its table. */
  private static boolean isNarrow(LogicalPlan plan) {
    if (plan instanceof Filter filter && (filter.condition() instanceof DynamicPruningSubquery
        || PartitionPruning$.MODULE$.isLikelySelective(filter.condition()))) {
      return true;
    }
    if (plan instanceof DataSourceV2ScanRelation relation) {
      return !(relation.scan() instanceof TableScan table) || table.isSelective();
    }
    return plan instanceof LocalRelation || isNarrow(plan.children().head());
  }

  /** The condition on a column of a scan: its value is one that the other side has. Null if that says little. */
  private static Function<Told, Expression> keysOf(LogicalPlan side, Expression key) {
    Source found = source(side, key);
    if (found == null || !isNarrow(found.plan())) {
      return told -> null;
    }
    long rows = rows(found.plan());
    return told -> {
      boolean worth = told.rows() >= Long.parseLong(SQLConf.get().getConfString(WORTH, WORTH_DEFAULT));
      boolean again = worth && rows <= READ_TWICE && rows * GAIN <= told.rows();
      return rows > told.rows() || !worth && told.rows() > LINK ? null : new DynamicPruningSubquery(told.column(),
          found.plan(), one(found.key()), one(0), !again, NamedExpression.newExprId(), Option.empty(), Option.empty());
    };
  }

  private static <T> Seq<T> one(T item) {
    return CollectionConverters.asScala(List.of(item)).toSeq();
  }

  private record Told(Attribute column, long rows) {}

  /** The plan with the scan of a column narrowed, where that leaves the same rows as narrowing the plan; else null. */
  private static LogicalPlan narrowed(LogicalPlan plan, Expression key, Function<Told, Expression> condition) {
    if (!(key instanceof AttributeReference column) || !JoinKeys.takes(column.dataType())) {
      return null;
    }
    if (plan instanceof DataSourceV2ScanRelation relation) {
      if (!(relation.scan() instanceof TableScan table) || !table.takesKeys()
          || !relation.outputSet().contains(column)) {
        return null;
      }
      Expression told = condition.apply(new Told(column, table.matching()));
      return told == null ? null : new Filter(told, plan);
    }
    if (plan instanceof Filter filter) {
      boolean told = filter.condition() instanceof DynamicPruningSubquery known
          && known.pruningKey().semanticEquals(column);
      return told ? null : replaced(plan, 0, narrowed(filter.child(), column, condition));
    }
    if (plan instanceof Project project) {
      return replaced(plan, 0, narrowed(project.child(), meaning(project.projectList(), column), condition));
    }
    if (plan instanceof Aggregate aggregate) {
      Expression grouped = meaning(aggregate.aggregateExpressions(), column);
      boolean whole = grouped != null
          && CollectionConverters.asJava(aggregate.groupingExpressions()).stream().anyMatch(grouped::semanticEquals);
      return whole ? replaced(plan, 0, narrowed(aggregate.child(), grouped, condition)) : null;
    }
    if (plan instanceof Join join) {
      boolean left = join.left().outputSet().contains(column);
      boolean kept = join.joinType() == Inner$.MODULE$ || join.joinType() == LeftSemi$.MODULE$ && left
          || join.joinType() == LeftAnti$.MODULE$ && left || join.joinType() == LeftOuter$.MODULE$ && left
          || join.joinType() == RightOuter$.MODULE$ && !left;
      return kept ? replaced(plan, left ? 0 : 1, narrowed(left ? join.left() : join.right(), column, condition)) : null;
    }
    return null;
  }

  /** What a column of a list stands for, or null. */
  private static Expression meaning(Seq<NamedExpression> list, AttributeReference column) {
    for (NamedExpression each : CollectionConverters.asJava(list)) {
      if (each.exprId().equals(column.exprId())) {
        return each instanceof Alias alias ? alias.child() : (Expression) each;
      }
    }
    return null;
  }

  private static LogicalPlan replaced(LogicalPlan plan, int index, LogicalPlan child) {
    if (child == null) {
      return null;
    }
    List<LogicalPlan> children = new ArrayList<>(CollectionConverters.asJava(plan.children()));
    children.set(index, child);
    return (LogicalPlan) plan.withNewChildren(CollectionConverters.asScala(children).toSeq());
  }
}
