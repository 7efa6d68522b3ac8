// Command berth is the command line of Berth, for users and operators: it
// submits jobs, shows what becomes of them, reads their logs, and looks after
// machines and tokens. docs/reference/cli.md lists every command.
//
// It speaks only HTTP, by api/client. Job files are read here, by
// internal/lib/jobfile, so that their faults are shown with line and column before
// anything is sent; the server checks everything again.
//
// What a command found goes to standard output, in the form that -o asks for;
// everything said about it goes to standard error. Exit codes are one table,
// in exit.go.
//
// The one rule to know: the environment and the terminal are read in main.go
// alone. Commands get both as values, so that tests can bring their own.
package main
