// Berth-sim replays traces through the engine that places in production.
//
// It describes no cluster of its own and decides nothing: machines and jobs are
// put into a placement.Snapshot, and what comes out is what a leader would have
// done. So a figure it prints is a figure of Berth.
package main
