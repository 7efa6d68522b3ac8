// Berth-sim replays traces through the engine that places in production.
//
// Berth-sim describes no cluster of its own and makes no decisions: it puts machines and
// jobs into a placement.Snapshot and carries out the resulting plans, as a leader would. So
// its figures are figures of Berth.
package main
