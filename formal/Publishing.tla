----------------------------- MODULE Publishing -----------------------------
(* A stream table: landings and undo append to its log, publishes fold it    *)
(* into versions of the serving copy, and fresh reads fold the rest.         *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Publishers, LastPosition, LastVersion, Mutation

VARIABLES log, versions, pc, at, base

vars == <<log, versions, pc, at, base>>

Positions == 1..Len(log)
Landed(i) == [kind |-> "row", of |-> i]
Voids(i) == [kind |-> "void", of |-> i]
Empty == [position |-> 0, rows |-> {}]
Newest == IF versions = <<>> THEN Empty ELSE versions[Len(versions)]

\* The state at a position: what has landed up to it, without what is voided up to it.
State(n) == {i \in 1..n : log[i].kind = "row" /\ ~\E j \in 1..n : log[j] = Voids(i)}

\* The same from a version and the log after it.
Folded(version, n) ==
  LET tail == (version.position + 1)..n IN
  (version.rows \cup {i \in tail : log[i].kind = "row"})
    \ (IF Mutation = "voids of the base are not seen" THEN {} ELSE {log[j].of : j \in {j \in tail : log[j].kind = "void"}})

Init == log = <<>> /\ versions = <<>> /\ pc = [p \in Publishers |-> "idle"]
        /\ at = [p \in Publishers |-> 0] /\ base = [p \in Publishers |-> 0]

Land == /\ Len(log) < LastPosition
        /\ log' = Append(log, Landed(Len(log) + 1))
        /\ UNCHANGED <<versions, pc, at, base>>

\* An undo is a delta of its own at a new position.
Void == /\ \E i \in State(Len(log)) :
             IF Mutation = "undo changes the log" THEN log' = [log EXCEPT ![i] = Voids(i)]
             ELSE Len(log) < LastPosition /\ log' = Append(log, Voids(i))
        /\ UNCHANGED <<versions, pc, at, base>>

\* A publish reads the end of the log and the last version, folds, and stages. Landings go on meanwhile.
Look(p) == /\ pc[p] = "idle" /\ Len(versions) < LastVersion /\ Newest.position < Len(log)
           /\ at' = [at EXCEPT ![p] = Len(log)]
           /\ base' = [base EXCEPT ![p] = Len(versions)]
           /\ pc' = [pc EXCEPT ![p] = "staged"]
           /\ UNCHANGED <<log, versions>>

\* Version and position are one record, on condition that the version follows the one that was folded upon.
Commit(p) ==
  LET from == IF base[p] = 0 THEN Empty ELSE versions[base[p]]
      shown == IF Mutation = "publish without its position" THEN Len(log) ELSE at[p]
  IN
  /\ pc[p] = "staged"
  /\ pc' = [pc EXCEPT ![p] = "idle"]
  /\ IF Len(versions) = base[p] \/ Mutation = "publishes do not conflict"
     THEN versions' = Append(versions, [position |-> shown, rows |-> Folded(from, at[p])])
     ELSE UNCHANGED versions
  /\ UNCHANGED <<log, at, base>>

Next == Land \/ Void \/ \E p \in Publishers : Look(p) \/ Commit(p)
Spec == Init /\ [][Next]_vars

\* Every version shows the state at its position, also after what landed or was voided later.
PublishedIsFold == \A v \in 1..Len(versions) : versions[v].rows = State(versions[v].position)
PositionsRise == \A v \in 2..Len(versions) : versions[v - 1].position < versions[v].position
\* A fresh read, at any moment: the newest version and the log after it.
Read == Folded(Newest, Len(log)) = State(Len(log))
=============================================================================
