// Package runtimetest checks container engines: Suite tests every guarantee of
// node.Runtime, and every implementation passes it. The package also has the parts for
// tests on a real engine: the test image (Image), built from testprog at test time, and
// private Docker engines (Dockerd) that a test may kill.
//
// Tests touch only containers with a label of their own, and remove them. Only tests import
// this package; the engine in memory, which programs may link, is package fakeruntime.
package runtimetest
