// Package runtimetest checks container engines: Suite holds every claim that
// node.Runtime makes, and every implementation passes it. The package also
// brings what tests on a real engine need: the test image (Image), built from
// testprog at test time, and private Docker engines (Dockerd) that a test may
// kill.
//
// Tests touch only containers that carry a label of their own, and remove them.
// Only tests import this package; the engine in memory, which programs may link,
// is package fakeruntime.
package runtimetest
