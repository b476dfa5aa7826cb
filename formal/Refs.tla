-------------------------------- MODULE Refs --------------------------------
(* A tag: changes of the record in slots, then the file in the table's       *)
(* folder, which Lance clients read and write without the catalog.           *)
EXTENDS Naturals, FiniteSets

CONSTANTS Processes, Changes, Clients, Mutation

Client == Changes + 1
Absent == 0

VARIABLES
  count,    \* changes of the record so far: the number of the last one
  gone,     \* the last change deletes the tag
  file,     \* Absent, the change whose stamp the file has, or Client
  marks,    \* changes up to which the folder is said to be as the record says
  writes,   \* changes of the file by clients
  pc, known, deletes, applied, listed, answer,
  clouded   \* a deletion was being looked after when the process read the file

vars == <<count, gone, file, marks, writes, pc, known, deletes, applied, listed, answer, clouded>>

Max(numbers) == IF numbers = {} THEN 0 ELSE CHOOSE n \in numbers : \A m \in numbers : m <= n

Init ==
  /\ count = 0 /\ gone = TRUE /\ file = Absent /\ marks = {} /\ writes = 0
  /\ pc = [p \in Processes |-> "idle"] /\ known = [p \in Processes |-> 0] /\ deletes = [p \in Processes |-> TRUE]
  /\ applied = [p \in Processes |-> 0] /\ listed = [p \in Processes |-> {}] /\ answer = [p \in Processes |-> Absent]
  /\ clouded = [p \in Processes |-> FALSE]

Shared == <<count, gone, file, marks, writes>>

\* A process reads the record, then the mark, then the file.
Look(p) ==
  /\ pc[p] = "idle" /\ count > 0
  /\ known' = [known EXCEPT ![p] = count] /\ deletes' = [deletes EXCEPT ![p] = gone]
  /\ pc' = [pc EXCEPT ![p] = IF Mutation = "the file before the mark" THEN "file" ELSE "mark"]
  /\ UNCHANGED <<Shared, applied, listed, answer, clouded>>

ReadMark(p) ==
  /\ pc[p] = "mark"
  /\ applied' = [applied EXCEPT ![p] = IF @ < known[p] THEN Max(marks \union {@}) ELSE @]
  /\ pc' = [pc EXCEPT ![p] = IF Mutation = "the file before the mark" THEN "judge" ELSE "file"]
  /\ UNCHANGED <<Shared, known, deletes, listed, answer, clouded>>

ReadFile(p) ==
  /\ pc[p] = "file"
  /\ answer' = [answer EXCEPT ![p] = file]  \* Judge decides whether it counts
  /\ clouded' = [clouded EXCEPT ![p] = \E q \in Processes : pc[q] \in {"again", "repair"}]
  /\ pc' = [pc EXCEPT ![p] = IF Mutation = "the file before the mark" THEN "mark" ELSE "judge"]
  /\ UNCHANGED <<Shared, known, deletes, applied, listed>>

\* The entry counts, and not the file.
Counts(p, found) ==
  LET new == known[p] > applied[p] IN
  CASE found = Absent -> new /\ ~deletes[p]
    [] found = Client -> new
    [] OTHER -> found # known[p] /\ (new \/ Mutation # "a stamp is not looked at")

Judge(p) ==
  /\ pc[p] = "judge"
  /\ LET found == answer[p]
         counts == Counts(p, found)
         due == counts /\ (found \in {Absent, Client} \/ found < known[p])
     IN /\ answer' = [answer EXCEPT ![p] = IF ~counts THEN found ELSE IF deletes[p] THEN Absent ELSE known[p]]
        /\ pc' = [pc EXCEPT ![p] = IF due THEN "write" ELSE IF applied[p] < known[p] THEN "list" ELSE "told"]
  /\ UNCHANGED <<Shared, known, deletes, applied, listed, clouded>>

Write(p) ==
  /\ pc[p] = "write"
  /\ file' = IF deletes[p] THEN Absent ELSE known[p]
  /\ pc' = [pc EXCEPT ![p] = IF deletes[p] /\ Mutation # "deleted without a look" THEN "again" ELSE "list"]
  /\ UNCHANGED <<count, gone, marks, writes, known, deletes, applied, listed, answer, clouded>>

\* A file that is deleted has no stamp: the record says whether the tag was made anew meanwhile.
Again(p) ==
  /\ pc[p] = "again"
  /\ IF count > known[p] /\ ~gone
     THEN pc' = [pc EXCEPT ![p] = "repair"] /\ answer' = [answer EXCEPT ![p] = count]
     ELSE pc' = [pc EXCEPT ![p] = "list"] /\ UNCHANGED answer
  /\ UNCHANGED <<Shared, known, deletes, applied, listed, clouded>>

Repair(p) ==
  /\ pc[p] = "repair"
  /\ file' = answer[p]
  /\ pc' = [pc EXCEPT ![p] = "list"]
  /\ UNCHANGED <<count, gone, marks, writes, known, deletes, applied, listed, answer, clouded>>

List(p) ==
  /\ pc[p] = "list"
  /\ listed' = [listed EXCEPT ![p] = marks]
  /\ pc' = [pc EXCEPT ![p] = "put"]
  /\ UNCHANGED <<Shared, known, deletes, applied, answer, clouded>>

PutMark(p) ==
  /\ pc[p] = "put"
  /\ marks' = marks \union {known[p]}
  /\ applied' = [applied EXCEPT ![p] = Max({@, known[p]})]
  /\ pc' = [pc EXCEPT ![p] = "drop"]
  /\ UNCHANGED <<count, gone, file, writes, known, deletes, listed, answer, clouded>>

DropMarks(p) ==
  /\ pc[p] = "drop"
  /\ marks' = marks \ {m \in listed[p] : m < known[p]}
  /\ pc' = [pc EXCEPT ![p] = "idle"]
  /\ UNCHANGED <<count, gone, file, writes, known, deletes, applied, listed, answer, clouded>>

\* Who has looked makes the next change, unless somebody else has made one since.
Commit(p) ==
  /\ pc[p] = "told" \/ (pc[p] = "idle" /\ count = 0)
  /\ count < Changes
  /\ known[p] = count
  /\ \E away \in BOOLEAN :
       /\ away => answer[p] # Absent
       /\ gone' = away
  /\ count' = count + 1
  /\ pc' = [pc EXCEPT ![p] = "idle"]
  /\ UNCHANGED <<file, marks, writes, known, deletes, applied, listed, answer, clouded>>

Done(p) ==
  /\ pc[p] = "told"
  /\ pc' = [pc EXCEPT ![p] = "idle"]
  /\ UNCHANGED <<Shared, known, deletes, applied, listed, answer, clouded>>

\* A process dies, and another one begins without its memory. Not between a deletion and the look after it.
Crash(p) ==
  /\ pc[p] \notin {"idle", "again", "repair"}
  /\ pc' = [pc EXCEPT ![p] = "idle"]
  /\ applied' = [applied EXCEPT ![p] = 0]
  /\ UNCHANGED <<Shared, known, deletes, listed, answer, clouded>>

\* A Lance client writes or deletes the file.
Bypass ==
  /\ writes < Clients
  /\ file' \in {Client, Absent}
  /\ writes' = writes + 1
  /\ UNCHANGED <<count, gone, marks, pc, known, deletes, applied, listed, answer, clouded>>

Next ==
  \/ Bypass
  \/ \E p \in Processes :
       \/ Look(p) \/ ReadMark(p) \/ ReadFile(p) \/ Judge(p) \/ Write(p) \/ Again(p) \/ Repair(p)
       \/ List(p) \/ PutMark(p) \/ DropMarks(p) \/ Commit(p) \/ Done(p) \/ Crash(p)
Spec == Init /\ [][Next]_vars

\* Nobody is told of a change before the last one that was there when it looked.
NoOlderChange == \A p \in Processes : pc[p] = "told" => answer[p] \in {Absent, Client} \/ answer[p] >= known[p]

\* Without clients a tag is there exactly if the last change says so, but while a deletion is looked after.
AsRecorded ==
  \A p \in Processes :
    (pc[p] = "told" /\ writes = 0 /\ known[p] = count /\ ~clouded[p])
      => answer[p] = IF deletes[p] THEN Absent ELSE known[p]
=============================================================================
