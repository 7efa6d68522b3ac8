// Program berth-check verifies that the history in a Berth database keeps
// Berth's promises: no GPU given twice, no capacity freed by time alone, no
// event without its cause. docs/operate/checking.md lists them all.
//
// It only reads, from one snapshot, and takes no lock. So it may run in
// production, every hour for example, and against a standby as well.
//
// Exit status: 0 no breach, 1 breaches (each is printed with the rows that
// prove it), 2 wrong usage, 3 something could not be read.
package main
