// Package prog implements the commands of the test program: exit, echo, sleep, trap-term,
// eat-memory, train and so on. The same code runs as a process inside a real container
// (runtimetest/testprog) and as a goroutine of the fake runtime (fakeruntime), so that a
// job means the same on both.
//
// A command reaches its surroundings only through Process; it never reads os.Args, the
// environment, signals or files on its own.
package prog
