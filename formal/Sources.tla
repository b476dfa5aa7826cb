------------------------------ MODULE Sources -------------------------------
(* Exactly-once sources: rows and the record of their file are one commit.   *)
EXTENDS Naturals, FiniteSets

CONSTANTS Files, Runs, Undos, Mutation

VARIABLES
  rows,    \* file -> how many copies of its rows the state of the table has
  ledger,  \* file -> recorded as taken
  count,   \* file -> how often its record was changed: what a transaction depends on
  pc, file, seen,
  undos

vars == <<rows, ledger, count, pc, file, seen, undos>>

Init ==
  /\ rows = [f \in Files |-> 0] /\ ledger = [f \in Files |-> FALSE] /\ count = [f \in Files |-> 0]
  /\ pc = [r \in Runs |-> "idle"] /\ file = [r \in Runs |-> CHOOSE f \in Files : TRUE] /\ seen = [r \in Runs |-> 0]
  /\ undos = 0

\* A run reads the record of a file in its transaction. One that is taken is left alone.
Start(r) ==
  /\ pc[r] \in {"idle", "lost"}
  /\ \E f \in Files :
       /\ ~ledger[f] \/ (Mutation = "repeated without a look" /\ pc[r] = "lost")
       /\ file' = [file EXCEPT ![r] = f]
       /\ seen' = [seen EXCEPT ![r] = count[f]]
  /\ pc' = [pc EXCEPT ![r] = "writing"]
  /\ UNCHANGED <<rows, ledger, count, undos>>

Holds(r) == seen[r] = count[file[r]] \/ Mutation = "record is no dependency"

\* Rows and record in one slot, or a conflict; then the run looks again. Its answer may be lost.
Land(r) ==
  /\ pc[r] = "writing"
  /\ IF Holds(r)
     THEN /\ rows' = [rows EXCEPT ![file[r]] = @ + 1]
          /\ IF Mutation = "record in another transaction"
             THEN UNCHANGED <<ledger, count>> /\ pc' = [pc EXCEPT ![r] = "landed"]
             ELSE /\ ledger' = [ledger EXCEPT ![file[r]] = TRUE]
                  /\ count' = [count EXCEPT ![file[r]] = @ + 1]
                  /\ \E end \in {"done", "lost"} : pc' = [pc EXCEPT ![r] = end]
     ELSE pc' = [pc EXCEPT ![r] = "idle"] /\ UNCHANGED <<rows, ledger, count>>
  /\ UNCHANGED <<file, seen, undos>>

RecordLater(r) ==
  /\ pc[r] = "landed"
  /\ ledger' = [ledger EXCEPT ![file[r]] = TRUE] /\ count' = [count EXCEPT ![file[r]] = @ + 1]
  /\ pc' = [pc EXCEPT ![r] = "done"]
  /\ UNCHANGED <<rows, file, seen, undos>>

\* A run ends at any moment without an answer; another one begins in its place.
Lose(r) ==
  /\ pc[r] \in {"writing", "landed"}
  /\ pc' = [pc EXCEPT ![r] = "lost"]
  /\ UNCHANGED <<rows, ledger, count, file, seen, undos>>

\* An undo takes the rows out and the record back, in one slot.
Undo(f) ==
  /\ ledger[f] /\ undos < Undos
  /\ rows' = [rows EXCEPT ![f] = @ - 1]
  /\ IF Mutation = "undo leaves the record" THEN UNCHANGED <<ledger, count>>
     ELSE ledger' = [ledger EXCEPT ![f] = FALSE] /\ count' = [count EXCEPT ![f] = @ + 1]
  /\ undos' = undos + 1
  /\ UNCHANGED <<pc, file, seen>>

Next == (\E r \in Runs : Start(r) \/ Land(r) \/ RecordLater(r) \/ Lose(r)) \/ \E f \in Files : Undo(f)
Spec == Init /\ [][Next]_vars

AtMostOnce == \A f \in Files : rows[f] <= 1
AsRecorded == \A f \in Files : (\A r \in Runs : pc[r] # "landed") => rows[f] = IF ledger[f] THEN 1 ELSE 0
=============================================================================
