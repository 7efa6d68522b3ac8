// Package day plays a new user's day on a real terminal and counts the commands up to each answer.
//
// A berth-dev with two machines, each with a container engine of its own, runs the jobs. The commands are
// typed into a shell in tmux, 80 columns wide, and the answers are read from its screen. Run it with
// make day; -programs names a folder with the programs of an earlier commit, so that the same day compares
// two versions (scripts/previous-programs.sh builds such a folder).
//
// A scene is a list of steps in the order in which a person would type them. A step names the answers that
// it is typed for and is left out once they have been seen, so the number of commands follows from the
// screens and not from the list. A command that programs of an earlier commit lack is left out as well; the
// scene then lists the commands that a person had to type instead.
//
// With -record the requests of some commands and the answers of the server are kept, with regular ids and
// times, in cmd/berth/testdata/screens. A test of cmd/berth renders each of them again and compares the
// result with the screen that a page of the guide shows.
//
// The one rule to know: scenes wait for text on the screen, and never for time to pass.
package day
