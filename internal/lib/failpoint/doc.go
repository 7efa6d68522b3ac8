// Package failpoint names the places where a process may die in the middle of
// its work: before and after every commit and side effect on a job's way from
// submit to release (L1 accept, L2 workflow start, L3 place, L4 dispatch, L5
// pull, L6 create and start, L7 run and checkpoint, L8 exit recorded, L9
// release). Tests arm one and check the job's course; see package e2e/chaos.
// Failpoints of a schedule, which submits jobs, are at L1. Some lie within a
// transaction, with its locks held, and say so in their text.
//
// Hit does nothing, and is compiled to nothing, unless the program was built with the tag
// failpoints. Such a program looks into the folder that BERTH_FAILPOINT_DIR names: the first hit
// of a failpoint takes the file of its name there, renames it to NAME.hit and carries out the
// action in it:
//
//	kill       ends the process with SIGKILL
//	freeze     stops the process with SIGSTOP, until it receives SIGCONT
//	error      makes Hit return an error: the operation fails, or its reply is lost
//	delay 2s   waits
//
// In such a program, BERTH_FAILPOINT_CLOCK sets a faster clock for the launches of machines of clouds, whose
// delays are minutes.
//
// A failpoint around a call of a store, or of another dependency, lies in a decorator in the file
// failpoints.go of its package, which only the tag compiles in. A failpoint lies in the code itself
// where no call of a dependency marks the moment: within a transaction, or between the steps of one
// function.
//
// The one rule to know: each name stands at one place in the source, and Points
// lists all of them; the package's test holds the two to each other.
package failpoint
