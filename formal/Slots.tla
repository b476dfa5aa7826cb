------------------------------- MODULE Slots -------------------------------
(* The commit protocol of the metastore: numbered slots, created if absent.  *)
(* formal/README.md maps every action to a function of the code.             *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Processes,      \* a set of numbers: writers; each also reads, checkpoints, collects and repairs
  Tries,          \* the transactions of a process; each reads one key and writes it, once
  KeyCount,
  Keepers,        \* the processes that also checkpoint and collect
  LastSlot,       \* the log ends here: a bound for the checker only
  Crashes,        \* how many crashes a behaviour may have
  Losses,         \* how many slot files the storage may lose
  Mutation        \* "none", or the planted fault

VARIABLES
  slots,      \* slot -> a body, the body "collected", or none: the files
  written,    \* slot -> the body that was created there: a ghost, never read by an action
  published,  \* the transactions whose log files are written: slots can be rebuilt from them
  checkpoint, \* the newest checkpoint: [slot, view, boundary]
  known,      \* process -> the last slot folded into its index
  view,       \* process -> key -> the last slot that wrote the key
  boundary,   \* process -> the boundary as its index has it
  pc,         \* process -> "down", "idle", "drawn" or "sent"
  body,       \* process -> the slot body that it is committing
  state,      \* transaction -> "new", "open", "waiting", "acked", "refused", "unknown"
  base,       \* transaction -> the slot it reads at
  seen,       \* transaction -> the slot that wrote its key last, as it read it
  after,      \* transaction -> the highest acknowledged slot when it began: a ghost
  crashes, losses

vars == <<slots, written, published, checkpoint, known, view, boundary, pc, body, state, base, seen, after, crashes, losses>>

Numbers == 1..LastSlot
Keys == 0..(KeyCount - 1)
Transactions == {t \in Processes \X (1..Tries) : t[1] = 1 \/ t[2] = 1}   \* the others try one each
OwnerOf == [t \in Transactions |-> t[1]]
KeyOf == [t \in Transactions |-> (t[1] + t[2]) % KeyCount]
None == [kind |-> "none", txns |-> {}, boundary |-> 0, by |-> 0, number |-> 0]
Collected == [None EXCEPT !.kind = "collected"]
Body(p, n, txns, b) == [kind |-> "body", txns |-> txns, boundary |-> b, by |-> p, number |-> n]
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Start == [k \in Keys |-> 0]

Folded(v, n, b) == [k \in Keys |-> IF \E t \in b.txns : KeyOf[t] = k THEN n ELSE v[k]]
Mine(p) == {t \in Transactions : OwnerOf[t] = p}
AckedSlots == {0} \cup {n \in Numbers : \E t \in written[n].txns : state[t] = "acked"}

Init ==
  /\ slots = [n \in Numbers |-> None]
  /\ written = [n \in Numbers |-> None]
  /\ published = {}
  /\ checkpoint = [slot |-> 0, view |-> Start, boundary |-> 0]
  /\ known = [p \in Processes |-> 0]
  /\ view = [p \in Processes |-> Start]
  /\ boundary = [p \in Processes |-> 0]
  /\ pc = [p \in Processes |-> "idle"]
  /\ body = [p \in Processes |-> None]
  /\ state = [t \in Transactions |-> "new"]
  /\ base = [t \in Transactions |-> 0]
  /\ seen = [t \in Transactions |-> 0]
  /\ after = [t \in Transactions |-> 0]
  /\ crashes = 0
  /\ losses = 0

---------------------------------------------------------------------------
(* Transactions. A process may begin with a state that is not the newest.   *)

Begin(t) ==
  LET p == OwnerOf[t] IN
  /\ state[t] = "new" /\ pc[p] # "down"
  /\ state' = [state EXCEPT ![t] = "waiting"]
  /\ base' = [base EXCEPT ![t] = known[p]]
  /\ seen' = [seen EXCEPT ![t] = view[p][KeyOf[t]]]
  /\ after' = [after EXCEPT ![t] = Max(AckedSlots)]
  /\ UNCHANGED <<slots, written, published, checkpoint, known, view, boundary, pc, body, crashes, losses>>

Conflict(p, t) ==
  /\ Mutation # "conflict ignored"
  /\ \/ base[t] < boundary[p]
     \/ view[p][KeyOf[t]] > base[t]

\* The group: all that wait and hold at the head; of those with one key the first only, the others wait for the next slot.
DrawUp(p) ==
  LET waiting == {t \in Mine(p) : state[t] = "waiting"}
      refused == {t \in waiting : Conflict(p, t)}
      holds == waiting \ refused
      takes(g) == /\ g \subseteq holds
                  /\ IF Mutation = "group not checked" THEN g = holds
                     ELSE /\ \A t, u \in g : t # u => KeyOf[t] # KeyOf[u]
                          /\ \A t \in holds \ g : \E u \in g : KeyOf[u] = KeyOf[t]
  IN
  /\ pc[p] = "idle" /\ waiting # {} /\ known[p] < LastSlot
  /\ \E g \in SUBSET holds :
       /\ takes(g)
       /\ state' = [t \in Transactions |-> IF t \in refused THEN "refused" ELSE state[t]]
       /\ IF g = {} THEN UNCHANGED <<pc, body>>
          ELSE /\ pc' = [pc EXCEPT ![p] = "drawn"]
               /\ body' = [body EXCEPT ![p] = Body(p, known[p] + 1, g, 0)]
  /\ UNCHANGED <<slots, written, published, checkpoint, known, view, boundary, base, seen, after, crashes, losses>>

\* A collection commits its boundary first, in a slot of its own.
DrawBoundary(p) ==
  /\ p \in Keepers /\ pc[p] = "idle" /\ known[p] < LastSlot
  /\ {t \in Mine(p) : state[t] = "waiting"} = {}
  /\ boundary[p] < known[p]
  /\ body' = [body EXCEPT ![p] = Body(p, known[p] + 1, {}, known[p])]
  /\ pc' = [pc EXCEPT ![p] = "drawn"]
  /\ UNCHANGED <<slots, written, published, checkpoint, known, view, boundary, state, base, seen, after, crashes, losses>>

---------------------------------------------------------------------------
(* The claim of a slot. The answer may be lost with or without an effect.   *)

Claims(p) ==
  LET n == body[p].number IN
  IF slots[n].kind = "none" \/ Mutation = "plain put"
  THEN /\ slots' = [slots EXCEPT ![n] = body[p]]
       /\ written' = [written EXCEPT ![n] = body[p]]
  ELSE UNCHANGED <<slots, written>>

Answer(p, n, b) ==
  /\ known' = [known EXCEPT ![p] = IF @ < n THEN n ELSE @]
  /\ view' = [view EXCEPT ![p] = IF known[p] < n THEN Folded(@, n, b) ELSE @]
  /\ boundary' = [boundary EXCEPT ![p] = IF b.boundary > @ THEN b.boundary ELSE @]
  /\ state' = [t \in Transactions |-> IF t \in b.txns THEN "acked" ELSE state[t]]
  /\ pc' = [pc EXCEPT ![p] = "idle"]
  /\ body' = [body EXCEPT ![p] = None]

\* The put is carried out and answered.
Put(p) ==
  LET n == body[p].number IN
  /\ pc[p] = "drawn"
  /\ Claims(p)
  /\ IF slots'[n] = body[p] /\ (slots[n].kind = "none" \/ Mutation = "plain put")
     THEN Answer(p, n, body[p])
     ELSE /\ pc' = [pc EXCEPT ![p] = "sent"]
          /\ UNCHANGED <<known, view, boundary, state, body>>
  /\ UNCHANGED <<published, checkpoint, base, seen, after, crashes, losses>>

\* The put is carried out, and its answer is lost.
PutLost(p) ==
  /\ pc[p] = "drawn" /\ slots[body[p].number].kind = "none" /\ Claims(p)
  /\ pc' = [pc EXCEPT ![p] = "sent"]
  /\ UNCHANGED <<published, checkpoint, known, view, boundary, body, state, base, seen, after, crashes, losses>>

\* After "exists" or no answer, the slot is read back before anything is said.
ReadBack(p) ==
  LET n == body[p].number IN
  /\ pc[p] = "sent"
  /\ \/ /\ slots[n] = body[p] /\ Mutation # "no read back"
        /\ Answer(p, n, body[p])
     \/ /\ slots[n].kind = "none"          \* the put had no effect: it is sent again
        /\ pc' = [pc EXCEPT ![p] = "drawn"]
        /\ UNCHANGED <<known, view, boundary, state, body>>
     \/ /\ slots[n].kind = "body"
        /\ slots[n] # body[p] \/ Mutation = "no read back"   \* another's: the group is drawn up again
        /\ pc' = [pc EXCEPT ![p] = "idle"]
        /\ body' = [body EXCEPT ![p] = None]
        /\ UNCHANGED <<known, view, boundary, state>>
     \/ /\ slots[n].kind = "collected"     \* nobody can tell any more whose it was
        /\ pc' = [pc EXCEPT ![p] = "idle"]
        /\ body' = [body EXCEPT ![p] = None]
        /\ state' = [t \in Transactions |->
                       IF t \in body[p].txns /\ Mutation # "collected is another's" THEN "unknown" ELSE state[t]]
        /\ UNCHANGED <<known, view, boundary>>
  /\ UNCHANGED <<slots, written, published, checkpoint, base, seen, after, crashes, losses>>

\* The store answers nothing for too long: the caller is told that the fate is unknown.
GiveUp(p) ==
  /\ pc[p] = "sent"
  /\ state' = [t \in Transactions |-> IF t \in body[p].txns
                                      THEN IF Mutation = "unknown is refused" THEN "refused" ELSE "unknown"
                                      ELSE state[t]]
  /\ pc' = [pc EXCEPT ![p] = "idle"]
  /\ body' = [body EXCEPT ![p] = None]
  /\ UNCHANGED <<slots, written, published, checkpoint, known, view, boundary, base, seen, after, crashes, losses>>

---------------------------------------------------------------------------
(* Reading on, publishing, checkpoints, collection.                         *)

Load(p) ==
  /\ known' = [known EXCEPT ![p] = checkpoint.slot]
  /\ view' = [view EXCEPT ![p] = checkpoint.view]
  /\ boundary' = [boundary EXCEPT ![p] = checkpoint.boundary]

Refresh(p) ==
  /\ pc[p] = "idle" /\ known[p] < LastSlot
  /\ LET n == known[p] + 1 IN
     \/ /\ slots[n].kind = "body"
        /\ known' = [known EXCEPT ![p] = n]
        /\ view' = [view EXCEPT ![p] = Folded(@, n, slots[n])]
        /\ boundary' = [boundary EXCEPT ![p] = IF slots[n].boundary > @ THEN slots[n].boundary ELSE @]
     \/ /\ slots[n].kind = "collected" /\ checkpoint.slot >= n
        /\ Load(p)
     \/ /\ slots[n].kind = "collected" /\ Mutation = "collected is empty"
        /\ known' = [known EXCEPT ![p] = n]
        /\ UNCHANGED <<view, boundary>>
  /\ UNCHANGED <<slots, written, published, checkpoint, pc, body, state, base, seen, after, crashes, losses>>

Publish(p) ==
  /\ pc[p] # "down" /\ Losses > 0
  /\ \E n \in 1..known[p] :
       /\ slots[n].kind = "body" /\ ~(slots[n].txns \subseteq published)
       /\ published' = published \cup slots[n].txns
  /\ UNCHANGED <<slots, written, checkpoint, known, view, boundary, pc, body, state, base, seen, after, crashes, losses>>

Checkpoint(p) ==
  /\ p \in Keepers /\ pc[p] = "idle" /\ known[p] > checkpoint.slot
  /\ checkpoint' = [slot |-> known[p], view |-> view[p], boundary |-> boundary[p]]
  /\ UNCHANGED <<slots, written, published, known, view, boundary, pc, body, state, base, seen, after, crashes, losses>>

\* Behind the boundary a slot gives up its body but not its number, once a checkpoint holds what it did.
Empty(p) ==
  /\ p \in Keepers /\ pc[p] = "idle"
  /\ \E n \in 1..(IF Mutation = "boundary moved late" THEN known[p] ELSE boundary[p]) :
       /\ slots[n].kind = "body" /\ \A m \in 1..(n - 1) : slots[m].kind # "body"
       /\ checkpoint.slot >= boundary[p] \/ Mutation = "collected before the checkpoint"
       /\ checkpoint.slot >= n \/ Mutation = "collected before the checkpoint"
       /\ slots' = [slots EXCEPT ![n] = IF Mutation = "slots deleted" THEN None ELSE Collected]
  /\ UNCHANGED <<written, published, checkpoint, known, view, boundary, pc, body, state, base, seen, after, crashes, losses>>

---------------------------------------------------------------------------
(* Crashes, and slots that the storage loses.                               *)

Crash(p) ==
  /\ pc[p] # "down" /\ crashes < Crashes
  /\ crashes' = crashes + 1
  /\ pc' = [pc EXCEPT ![p] = "down"]
  /\ body' = [body EXCEPT ![p] = None]
  /\ known' = [known EXCEPT ![p] = 0]
  /\ view' = [view EXCEPT ![p] = Start]
  /\ boundary' = [boundary EXCEPT ![p] = 0]
  /\ state' = [t \in Transactions |-> IF t \in Mine(p) /\ state[t] = "waiting" THEN "unknown" ELSE state[t]]
  /\ UNCHANGED <<slots, written, published, checkpoint, base, seen, after, losses>>

\* A careless rm, of a slot whose files are published and that no running process still has to fold.
Lose ==
  /\ losses < Losses
  /\ \E n \in Numbers :
       /\ slots[n].kind = "body" /\ slots[n].txns # {} /\ slots[n].txns \subseteq published
       /\ \A p \in Processes : pc[p] = "down" \/ (known[p] >= n /\ body[p].number # n)
       /\ slots' = [slots EXCEPT ![n] = None]
  /\ losses' = losses + 1
  /\ UNCHANGED <<written, published, checkpoint, known, view, boundary, pc, body, state, base, seen, after, crashes>>

IsLost(n) == slots[n].kind = "none" /\ \E t \in published : t \in written[n].txns

\* An opener writes lost slots again from the published files, exactly, before it folds them.
Open(p) ==
  /\ pc[p] = "down"
  /\ IF \E n \in Numbers : IsLost(n) /\ Mutation # "opened with a gap"
     THEN /\ \E n \in Numbers : IsLost(n) /\ slots' = [slots EXCEPT ![n] = written[n]]
          /\ UNCHANGED <<known, view, boundary, pc>>
     ELSE /\ Load(p)
          /\ pc' = [pc EXCEPT ![p] = "idle"]
          /\ UNCHANGED slots
  /\ UNCHANGED <<written, published, checkpoint, body, state, base, seen, after, crashes, losses>>

Next ==
  \/ \E t \in Transactions : Begin(t)
  \/ \E p \in Processes :
       \/ DrawUp(p) \/ DrawBoundary(p) \/ Put(p) \/ PutLost(p) \/ ReadBack(p) \/ GiveUp(p)
       \/ Refresh(p) \/ Publish(p) \/ Checkpoint(p) \/ Empty(p) \/ Crash(p) \/ Open(p)
  \/ Lose

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Promises.                                                                *)

SlotsOf(t) == {n \in Numbers : t \in written[n].txns}

AcknowledgedIsKept == \A t \in Transactions : state[t] = "acked" => SlotsOf(t) # {}
RefusedIsNotThere == \A t \in Transactions : state[t] = "refused" => SlotsOf(t) = {}
CommittedOnce == \A t \in Transactions : Cardinality(SlotsOf(t)) <= 1

\* Slots in order are a serial order: each transaction read its key as the slots before its own left it.
LastWrite(k, n) == Max({0} \cup {m \in 1..(n - 1) : \E u \in written[m].txns : KeyOf[u] = k})
Serializable ==
  \A n \in Numbers : \A t \in written[n].txns :
    /\ seen[t] = LastWrite(KeyOf[t], n)
    /\ \A u \in written[n].txns : u # t => KeyOf[u] # KeyOf[t]
RealTime == \A n \in Numbers : \A t \in written[n].txns : after[t] < n

Replayed(n) == [k \in Keys |-> LastWrite(k, n + 1)]
ViewsAreRight == \A p \in Processes : pc[p] # "down" => view[p] = Replayed(known[p])
CheckpointIsRight == checkpoint.view = Replayed(checkpoint.slot)

\* The state at every slot from the boundary on can be read: its slots are whole, or a checkpoint holds them.
Readable == \A n \in Numbers :
  slots[n].kind = "collected" =>
    /\ checkpoint.slot >= n
    /\ \E m \in Numbers : written[m].boundary >= n

NoGap == \A n \in Numbers : n > 1 /\ written[n].kind = "body" => written[n - 1].kind = "body"
=============================================================================
