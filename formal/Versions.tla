------------------------------ MODULE Versions ------------------------------
(* Managed Lance versions: a client stages a manifest, the catalog records   *)
(* it, gives it its final name, and points the record at that name.          *)
(* Beside: other clients, transactions, and writers that bypass the catalog. *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Clients,       \* a set of numbers; each has one row to append
  Transactions,  \* a set of other numbers: appends that the catalog makes itself
  Foreigners,    \* a set of other numbers: writers that put a manifest under a final name
  LastVersion,
  Tries,         \* how often a client rebases
  Crashes,
  Mutation

VARIABLES
  newest,   \* the newest recorded version
  record,   \* version -> the manifest that is recorded
  final,    \* version -> the manifest under the final name
  staged,   \* the staged manifests that are there
  pointed,  \* the versions whose record names the final manifest
  pc, mine, tagged, tries,
  aside,    \* a version that somebody has found under a final name, without a record
  used,     \* transactions and foreigners that have written
  crashes

vars == <<newest, record, final, staged, pointed, pc, mine, tagged, tries, aside, used, crashes>>

Numbers == 1..LastVersion
None == [by |-> 0, version |-> 0, rows |-> {}]
Manifest(w, v, rows) == [by |-> w, version |-> v, rows |-> rows]
Rows(v) == IF v = 0 THEN {} ELSE record[v].rows

Init ==
  /\ newest = 0
  /\ record = [v \in Numbers |-> None]
  /\ final = [v \in Numbers |-> None]
  /\ staged = {} /\ pointed = {} /\ used = {} /\ aside = 0 /\ crashes = 0
  /\ pc = [c \in Clients |-> "idle"]
  /\ mine = [c \in Clients |-> None]
  /\ tagged = [c \in Clients |-> TRUE]
  /\ tries = [c \in Clients |-> 0]

---------------------------------------------------------------------------
(* A client, as pylance does it.                                            *)

\* It reads the newest version and stages a manifest with one row more. Its request may lack an e_tag.
Stage(c) ==
  /\ pc[c] = "idle" /\ newest < LastVersion /\ tries[c] < Tries
  /\ mine' = [mine EXCEPT ![c] = Manifest(c, newest + 1, Rows(newest) \cup {c})]
  /\ staged' = staged \cup {mine'[c]}
  /\ \E known \in BOOLEAN : tagged' = [tagged EXCEPT ![c] = known]
  /\ tries' = [tries EXCEPT ![c] = @ + 1]
  /\ pc' = [pc EXCEPT ![c] = "asked"]
  /\ UNCHANGED <<newest, record, final, pointed, aside, used, crashes>>

\* The version exists: is it the very one that is asked for? All manifests here have one size.
IsSame(c) ==
  IF Mutation = "absent e_tag equal" THEN ~tagged[c] \/ record[mine[c].version] = mine[c]
  ELSE IF mine[c] \in staged THEN record[mine[c].version] = mine[c]
  ELSE tagged[c] /\ record[mine[c].version] = mine[c]

\* Whatever is under the final name of a recorded version gives way to the recorded manifest, by whoever sees it.
Final(v) == [final EXCEPT ![v] = IF @ = None \/ Mutation # "foreign manifest stays" THEN record[v] ELSE @]
Sighted(v) == IF v \in pointed \/ record[v] \notin staged THEN final ELSE Final(v)

Judge(c) ==
  /\ pc[c] = "asked"
  /\ pc' = [pc EXCEPT ![c] = IF mine[c].version > newest THEN "planned" ELSE IF IsSame(c) THEN "finished" ELSE "erred"]
  /\ final' = IF mine[c].version <= newest THEN Sighted(mine[c].version) ELSE final
  /\ UNCHANGED <<newest, record, staged, pointed, mine, tagged, tries, aside, used, crashes>>

\* The record, on condition that it follows the newest.
Record(c) ==
  LET v == mine[c].version IN
  /\ pc[c] = "planned"
  /\ IF newest = v - 1 \/ Mutation = "no precondition"
     THEN /\ record' = [record EXCEPT ![v] = mine[c]]
          /\ newest' = IF v > newest THEN v ELSE newest
          /\ pc' = [pc EXCEPT ![c] = "recorded"]
     ELSE /\ pc' = [pc EXCEPT ![c] = "asked"]
          /\ UNCHANGED <<record, newest>>
  /\ UNCHANGED <<final, staged, pointed, mine, tagged, tries, aside, used, crashes>>

Finish(c) ==
  /\ pc[c] = "recorded"
  /\ final' = Final(mine[c].version)
  /\ pc' = [pc EXCEPT ![c] = "finished"]
  /\ UNCHANGED <<newest, record, staged, pointed, mine, tagged, tries, aside, used, crashes>>

Acknowledge(c) ==
  /\ pc[c] = "finished"
  /\ pc' = [pc EXCEPT ![c] = "acked"]
  /\ UNCHANGED <<newest, record, final, staged, pointed, mine, tagged, tries, aside, used, crashes>>

\* The server dies at any step of the request, or its answer is lost.
Lose(c) ==
  /\ pc[c] \in {"asked", "planned", "recorded", "finished"} /\ crashes < Crashes
  /\ crashes' = crashes + 1
  /\ pc' = [pc EXCEPT ![c] = "erred"]
  /\ UNCHANGED <<newest, record, final, staged, pointed, mine, tagged, tries, aside, used>>

\* A client that lost an answer sends the same request again, perhaps without its e_tag.
Repeat(c) ==
  /\ pc[c] = "erred"
  /\ pc' = [pc EXCEPT ![c] = "asked"]
  /\ UNCHANGED <<newest, record, final, staged, pointed, mine, tagged, tries, aside, used, crashes>>

\* After any error the client describes its version: its own is success, another's is rebased upon, none is unknown.
Describe(c) ==
  LET v == mine[c].version IN
  /\ pc[c] = "erred"
  /\ IF v > newest
     THEN /\ pc' = [pc EXCEPT ![c] = "unknown"]
          /\ staged' = staged \ {mine[c]}
          /\ UNCHANGED <<final, mine>>
     ELSE /\ final' = Sighted(v)
          /\ IF record[v] = mine[c]
             THEN pc' = [pc EXCEPT ![c] = "acked"] /\ UNCHANGED <<staged, mine>>
             ELSE /\ pc' = [pc EXCEPT ![c] = "idle"]
                  /\ staged' = staged \ {mine[c]}
                  /\ mine' = [mine EXCEPT ![c] = None]
  /\ UNCHANGED <<newest, record, pointed, tagged, tries, aside, used, crashes>>

---------------------------------------------------------------------------
(* Others.                                                                  *)

\* A transaction of the catalog takes the next version, in the slot of its other changes.
Transact(t) ==
  /\ t \notin used /\ newest < LastVersion
  /\ LET m == Manifest(t, newest + 1, Rows(newest) \cup {t}) IN
     /\ record' = [record EXCEPT ![newest + 1] = m]
     /\ staged' = staged \cup {m}
  /\ newest' = newest + 1
  /\ used' = used \cup {t}
  /\ UNCHANGED <<final, pointed, pc, mine, tagged, tries, aside, crashes>>

\* Somebody reads a version: one that is still staged is finalized on sight.
Synchronize(v) ==
  /\ v <= newest /\ v \notin pointed /\ record[v] \in staged
  /\ final' = Final(v)
  /\ UNCHANGED <<newest, record, staged, pointed, pc, mine, tagged, tries, aside, used, crashes>>

\* The record is pointed at the final name, and then the staged manifest goes.
Point(v) ==
  /\ v <= newest /\ v \notin pointed
  /\ final[v] = record[v] \/ Mutation = "pointed before final"
  /\ pointed' = pointed \cup {v}
  /\ staged' = staged \ {record[v]}
  /\ UNCHANGED <<newest, record, final, pc, mine, tagged, tries, aside, used, crashes>>

Bypass(f) ==
  /\ f \notin used /\ newest < LastVersion /\ final[newest + 1] = None
  /\ final' = [final EXCEPT ![newest + 1] = Manifest(f, newest + 1, Rows(newest) \cup {f})]
  /\ used' = used \cup {f}
  /\ UNCHANGED <<newest, record, staged, pointed, pc, mine, tagged, tries, aside, crashes>>

\* A manifest above the newest record was written behind the catalog's back: first it is seen, then there is no record.
SeeForeign(v) ==
  /\ aside = 0 /\ final[v] # None
  /\ v > newest \/ Mutation = "set aside without a look"
  /\ aside' = v
  /\ UNCHANGED <<newest, record, final, staged, pointed, pc, mine, tagged, tries, used, crashes>>

\* It is copied and deleted. Should the version have been recorded meanwhile, it gets its final name again.
SetAside ==
  /\ aside # 0
  /\ LET v == aside IN
     final' = [final EXCEPT ![v] =
       IF v > newest \/ Mutation = "not finalized again" THEN None
       ELSE IF record[v] \in staged \/ final[v] = record[v] THEN record[v] ELSE None]
  /\ aside' = 0
  /\ UNCHANGED <<newest, record, staged, pointed, pc, mine, tagged, tries, used, crashes>>

Next ==
  \/ \E c \in Clients : Stage(c) \/ Judge(c) \/ Record(c) \/ Finish(c) \/ Acknowledge(c) \/ Lose(c) \/ Repeat(c) \/ Describe(c)
  \/ \E t \in Transactions : Transact(t)
  \/ \E f \in Foreigners : Bypass(f)
  \/ \E v \in Numbers : Synchronize(v) \/ Point(v) \/ SeeForeign(v)
  \/ SetAside

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Promises.                                                                *)

AcknowledgedIsKept == \A c \in Clients : pc[c] = "acked" => c \in Rows(newest)
TransactionsAreKept == \A t \in Transactions \cap used : t \in Rows(newest)
NothingForeign == \A f \in Foreigners : f \notin Rows(newest)

\* A row is added by one version at most: a client that takes its own version for another's would append twice.
AppendedOnce == \A w \in Clients \cup Transactions : Cardinality({v \in 1..newest : record[v].by = w}) <= 1

\* Every version can be opened: its manifest is staged, or under its final name.
Readable == \A v \in 1..newest : record[v] \in staged \/ final[v] = record[v]
AcknowledgedIsFinal == \A c \in Clients : pc[c] = "finished" => final[mine[c].version] = mine[c]
PointedIsFinal == \A v \in pointed : final[v] = record[v]
=============================================================================
