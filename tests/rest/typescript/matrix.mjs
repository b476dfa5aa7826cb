// LanceDB's TypeScript client against a server: one row for each everyday call, as the holder of a key for `prod`.
// Prints one JSON object: the name of each call, and null or its failure.
import assert from "node:assert/strict";
import * as lancedb from "@lancedb/lancedb";
import { Field, Float32, Int64, Schema, Utf8 } from "apache-arrow";

const [url, apiKey] = process.argv.slice(2);
const path = ["prod"];
const rows = (first, end) =>
  Array.from({ length: end - first }, (_, at) => first + at).map((n) => ({
    id: n,
    text: `word${n} common`,
    vector: [n, 1],
    score: n / 2,
  }));
const ids = (found) => found.map((row) => Number(row.id));
const db = await lancedb.connect("db://lake", { apiKey, hostOverride: url });

const calls = {
  async createEmpty() {
    const schema = new Schema([new Field("id", new Int64(), true), new Field("name", new Utf8(), true)]);
    const made = await db.createEmptyTable("ts_empty", schema, path);
    assert.equal(await made.countRows(), 0);
    assert.deepEqual((await made.schema()).fields.map((field) => field.name), ["id", "name"]);
  },
  async createModes(table) {
    await assert.rejects(db.createTable(table.name, rows(0, 2), path), /already exists/);
    assert.equal(await (await db.createTable(table.name, rows(0, 2), path, { existOk: true })).countRows(), 300);
    assert.equal(await (await db.createTable(table.name, rows(0, 2), path, { mode: "overwrite" })).countRows(), 2);
  },
  async openAndDrop(table) {
    assert.equal(await (await db.openTable(table.name, path)).countRows(), 300);
    await db.dropTable(table.name, path);
    await assert.rejects(db.openTable(table.name, path), /not found/);
  },
  async rename(table) {
    await db.renameTable(table.name, "ts_renamed", { namespacePath: path });
    assert.equal(await (await db.openTable("ts_renamed", path)).countRows(), 300);
  },
  async listTables(table) {
    const found = [];
    let pageToken;
    do {
      const page = await db.listTables(path, { limit: 2, pageToken });
      found.push(...page.tables);
      pageToken = page.pageToken;
    } while (pageToken);
    assert.ok(found.includes(table.name) && found.length > 3);
    assert.ok((await db.tableNames(path, { limit: 1000 })).includes(table.name));
  },
  async namespaces() {
    await db.createNamespace(["prod", "ts"], { properties: { owner: "ann" } });
    assert.deepEqual((await db.listNamespaces(path)).namespaces, ["ts"]);
    assert.equal((await db.describeNamespace(["prod", "ts"])).properties.owner, "ann");
    await db.createTable("inner", rows(0, 3), ["prod", "ts"]);
    assert.equal(await (await db.openTable("inner", ["prod", "ts"])).countRows(), 3);
    await db.dropTable("inner", ["prod", "ts"]);
    await db.dropNamespace(["prod", "ts"]);
  },
  async schema(table) {
    const schema = await table.schema();
    assert.deepEqual(schema.fields.map((field) => field.name), ["id", "text", "vector", "score"]);
    assert.match(String(schema.fields[2].type), /FixedSizeList/);
  },
  async countRows(table) {
    assert.deepEqual([await table.countRows(), await table.countRows("id < 10")], [300, 10]);
  },
  async add(table) {
    assert.equal((await table.add(rows(300, 310))).version, 2);
    assert.equal(await table.countRows(), 310);
    await table.add(rows(0, 1), { mode: "overwrite" });
    assert.equal(await table.countRows(), 1);
  },
  async searchVector(table) {
    const found = await table.search([9, 1]).limit(2).toArray();
    assert.deepEqual([Number(found[0].id), found[0]._distance, found.length], [9, 0, 2]);
    const near = await table.vectorSearch([9, 1]).where("id < 5").select(["id"]).limit(1).toArray();
    assert.deepEqual(ids(near), [4]);
  },
  async searchManyVectors(table) {
    const found = await table.vectorSearch([9, 1]).addQueryVector([7, 1]).limit(1).toArray();
    assert.deepEqual(new Set(ids(found)), new Set([9, 7]));
  },
  async searchText(table) {
    await table.createIndex("text", { config: lancedb.Index.fts({ withPosition: true }) });
    assert.deepEqual(ids(await table.search("word7", "fts", "text").limit(2).toArray()), [7]);
    assert.deepEqual(ids(await table.query().fullTextSearch(new lancedb.MatchQuery("word8", "text")).limit(2).toArray()), [8]);
    const phrase = new lancedb.PhraseQuery("word9 common", "text");
    assert.deepEqual(ids(await table.query().fullTextSearch(phrase).limit(2).toArray()), [9]);
  },
  async searchHybrid(table) {
    await table.createIndex("text", { config: lancedb.Index.fts() });
    const found = await table
      .query()
      .nearestTo([9, 1])
      .fullTextSearch("word7", { columns: ["text"] })
      .rerank(await lancedb.rerankers.RRFReranker.create())
      .select(["id"])
      .limit(2)
      .toArray();
    assert.ok(ids(found).includes(7));
  },
  async filters(table) {
    const found = await table.query().where("id >= 10 AND text LIKE 'word1%'").select(["id"]).limit(2).offset(1).toArray();
    assert.deepEqual(ids(found), [11, 12]);
    const twice = await table.query().where("id < 3").select({ twice: "id * 2" }).toArray();
    assert.deepEqual(twice.map((row) => Number(row.twice)), [0, 2, 4]);
    assert.deepEqual(await table.query().where("id < 0").toArray(), []);
  },
  async toArrow(table) {
    assert.equal((await table.query().toArrow()).numRows, 300);
    assert.equal((await table.toArrow()).numRows, 300);
  },
  async plans(table) {
    assert.match(await table.vectorSearch([9, 1]).limit(1).explainPlan(true), /Lance/);
    assert.match(await table.vectorSearch([9, 1]).limit(1).analyzePlan(), /metrics/);
  },
  async update(table) {
    const done = await table.update({ where: "id < 3", values: { text: "changed" } });
    assert.deepEqual([Number(done.rowsUpdated), Number(done.version)], [3, 2]);
    assert.equal(Number((await table.update({ where: "id = 5", valuesSql: { score: "score + 1" } })).rowsUpdated), 1);
  },
  async delete(table) {
    const done = await table.delete("id >= 290");
    assert.deepEqual([Number(done.version), Number(done.numDeletedRows), await table.countRows()], [2, 10, 290]);
  },
  async mergeInsert(table) {
    const done = await table.mergeInsert("id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute(rows(299, 302));
    assert.deepEqual([Number(done.numUpdatedRows), Number(done.numInsertedRows)], [1, 2]);
  },
  async addColumns(table) {
    await table.addColumns([{ name: "twice", valueSql: "score * 2" }]);
    assert.equal((await table.query().where("id = 4").toArray())[0].twice, 4);
  },
  async alterColumns(table) {
    await table.alterColumns([{ path: "score", rename: "points" }, { path: "id", dataType: new Float32() }]);
    const schema = await table.schema();
    assert.deepEqual([schema.fields[3].name, String(schema.fields[0].type)], ["points", "Float32"]);
  },
  async dropColumns(table) {
    await table.dropColumns(["score"]);
    assert.equal((await table.schema()).fields.length, 3);
  },
  async scalarIndices(table) {
    await table.createIndex("id", { config: lancedb.Index.btree() });
    await table.createIndex("score", { config: lancedb.Index.bitmap(), waitTimeoutSeconds: 10 });
    const kinds = (await table.listIndices()).map((index) => [index.name, index.indexType, index.columns]);
    assert.deepEqual(kinds, [["id_idx", "BTree", ["id"]], ["score_idx", "Bitmap", ["score"]]]);
    await table.dropIndex("id_idx");
    assert.equal((await table.listIndices()).length, 1);
  },
  async vectorIndex(table) {
    await table.createIndex("vector", { config: lancedb.Index.ivfPq({ numPartitions: 1, numSubVectors: 1 }) });
    await table.waitForIndex(["vector_idx"], 20);
    const stats = await table.indexStats("vector_idx");
    assert.deepEqual([stats.indexType, stats.distanceType, stats.numIndexedRows], ["IVF_PQ", "l2", 300]);
    assert.deepEqual(ids(await table.vectorSearch([9, 1]).nprobes(1).refineFactor(50).limit(1).toArray()), [9]);
    assert.equal(await table.indexStats("none"), undefined);
  },
  async versions(table) {
    await table.add(rows(300, 301));
    assert.deepEqual((await table.listVersions()).map((each) => each.version), [1, 2]);
    assert.equal(await table.version(), 2);
  },
  async checkoutAndRestore(table) {
    await table.add(rows(300, 310));
    await table.checkout(1);
    assert.equal(await table.countRows(), 300);
    await table.checkoutLatest();
    assert.equal(await table.countRows(), 310);
    await table.checkout(1);
    await table.restore();
    assert.deepEqual([await table.countRows(), await table.version()], [300, 3]);
  },
  async tags(table) {
    await table.add(rows(300, 301));
    const tags = await table.tags();
    await tags.create("first", 1);
    await tags.create("second", 1);
    await tags.update("second", 2);
    assert.deepEqual(Object.entries(await tags.list()).map(([name, tag]) => [name, tag.version]).sort(), [["first", 1], ["second", 2]]);
    assert.equal(await tags.getVersion("second"), 2);
    await table.checkout("first");
    assert.equal(await table.countRows(), 300);
    await table.checkoutLatest();
    await tags.delete("first");
    assert.deepEqual(Object.keys(await tags.list()), ["second"]);
  },
  async stats(table) {
    const stats = await table.stats();
    assert.deepEqual([stats.numRows, stats.numIndices, stats.fragmentStats.numFragments], [300, 0, 1]);
  },
  async takeOffsets(table) {
    assert.deepEqual(ids(await table.takeOffsets([5, 7]).toArray()), [5, 7]);
  },
};

const outcome = {};
for (const [name, check] of Object.entries(calls)) {
  try {
    await check(await db.createTable(`ts_${name}`, rows(0, 300), path));
    outcome[name] = null;
  } catch (error) {
    outcome[name] = String(error?.message ?? error).slice(0, 600);
  }
}
console.log(JSON.stringify(outcome));
