package berth_test

// nominationStates is the part of docs/design/states.md about nominations.
const nominationStates = `
## Of a nomination
A nomination keeps capacity of one machine for one waiting job, its beneficiary. It has no status column: its state follows from its victim, and it ends by
the deletion of its rows. No transaction that ends a nomination changes the capacity that a job holds.

| state | who holds the capacity | who may use it | counts for others as used |
| --- | --- | --- | --- |
| inactive | the victim, which is ordered to stop or killed | the victim | until the victim's end, and from then on as below |
| active | none, it is free | the beneficiary | until the beneficiary's end, if it has room when its last victim has stopped |
| active, a start is reserved for the beneficiary | none, it is free | the beneficiary | until that start or the expiry, the earlier one |
| of a repair, a member still stops | the gang itself, which is victim and beneficiary | the gang's members | until the expiry |
| of a repair, active | none, it is free | the gang | until the expiry at least, or until its reserved start |

| event | who acts | effect |
| --- | --- | --- |
| a blocked job stops others | leader, with the orders to stop in one transaction | writes the nominations; they expire after ` + "`--nomination-for`" + ` |
| a job with nominations stops others, or needs no victims since other jobs stop | leader, in one transaction | replaces all its nominations; not without victims if all are of a repair |
| that preemption is refused | - | the earlier nominations stay |
| a member of a gang fails, falls silent, or is not claimed | the transaction that stops the gang | keeps the capacity of the survivors for the repair, at most the part of all members that is nominated for no other job; expires after the grace and a minute |
| the gang's attempt is settled | worker | a minute from now on, or deleted: see [adr/0012](../adr/0012-repairs-by-nominations.md) |
| the beneficiary starts | leader, in the commit of the start | deletes all its nominations |
| the beneficiary has room when its victims have stopped | - | they stay |
| it finds no victims, and its reserved start is on the machine before the expiry | - | they stay |
| ... is after the expiry, on other machines, or behind another reserved start | leader, before the next plan | deletes the nominations that the plan saw, except those of a repair: see [adr/0107](../adr/0107-reserved-starts-replace-nominations.md) |
| it must not search victims in this plan, or gets no reserved start | - | they stay |
| another gang could start with the capacity of a repair | leader, before the next plan | deletes all nominations of that repair |
| the beneficiary is canceled or fails in the queue | that transaction, or the leader | deletes all its nominations |
| the gang is canceled or suspended while its members stop | that transaction | deletes the nominations of the repair |
| the expiry has passed | leader | the next plan ignores the nomination, and the leader deletes it |
| the machine is retired | leader | deletes the nominations on it |
| the victim ends | - | the nomination is active from that moment on |
| a new leader | - | all rows stay; a former leader can write and delete none |
`
