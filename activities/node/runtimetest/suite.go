package runtimetest

import "testing"

// Suite checks every claim of node.Runtime on the engine that open connects to.
// Each claim gets a connection of its own.
func Suite(t *testing.T, open func(t *testing.T) Harness) {
	claims := []struct {
		name  string
		check func(b *bench)
	}{
		{"InfoDescribesTheMachine", infoDescribesTheMachine},
		{"ImageThatIsHereNeedsNoRegistry", imageThatIsHereNeedsNoRegistry},
		{"MissingImageIsNotFound", missingImageIsNotFound},
		{"ImageThatIsHereHasASize", imageThatIsHereHasASize},
		{"UnreachableRegistryIsUnavailable", unreachableRegistryIsUnavailable},

		{"CreateDoesNotStart", createDoesNotStart},
		{"CreateOfAnExistingNameReturnsItForAdoption", createOfAnExistingNameReturnsIt},
		{"OnlyOneOfManyCreatesWins", onlyOneOfManyCreatesWins},
		{"ContainerWithoutLimitsIsRefused", containerWithoutLimitsIsRefused},
		{"ImageThatIsNotHereIsUnavailableAtCreate", absentImageAtCreate},
		{"AbsentContainerIsNoContainer", absentContainerIsNoContainer},
		{"IDPrefixIsNotAName", idPrefixIsNotAName},
		{"ListFindsEveryLabelAndAllStates", listFindsEveryLabel},
		{"ProbeIsAnsweredWithinItsContext", probeIsAnswered},
		{"RemoveTakesAnyState", removeTakesAnyState},
		{"AnotherConnectionSeesTheSameContainers", anotherConnectionSeesTheSame},

		{"ExitCodesArrive", exitCodesArrive},
		{"StartRunsOnce", startRunsOnce},
		{"WaitBeforeStartSeesTheExit", waitBeforeStartSeesTheExit},
		{"WaitEndsWhenTheContainerIsRemoved", waitEndsWhenRemoved},
		{"WaitEndsWithItsContext", waitEndsWithItsContext},
		{"MissingExecutableIsBadCommand", missingExecutableIsBadCommand},
		{"EntrypointAndCommandReplaceTheImages", entrypointAndCommand},
		{"EnvironmentAndFolderArrive", environmentAndFolder},
		{"MountsAreSharedAsAsked", mountsAreShared},
		{"WhatAContainerLeftCanBeCopiedOut", copiedOut},
		{"GPUVariableFollowsTheReservation", gpuVariableFollowsReservation},

		{"NetworkIsMadeOnceAndListed", networkIsMadeOnce},
		{"NetworkWithAContainerStays", networkWithAContainerStays},
		{"NetworkOfNobodyIsRefused", networkOfNobody},

		{"StopLetsTheProcessFinish", stopLetsTheProcessFinish},
		{"StopKillsAfterGrace", stopKillsAfterGrace},
		{"StopOfAnythingStoppedIsDone", stopOfAnythingStopped},
		{"SignalReachesTheProcess", signalReachesTheProcess},
		{"MemoryLimitIsFlagged", memoryLimitIsFlagged},
		{"ChildLostToTheMemoryLimitIsFlagged", childLostIsFlagged},

		{"LogsSplitStreamsAndKeepOrder", logsSplitStreams},
		{"LogsFollowToTheLastLine", logsFollowToTheLastLine},
		{"LogsOfAShortLifeAreWhole", logsOfAShortLife},
		{"LogsResumeInclusively", logsResumeInclusively},
		{"LogsStopWhenTheReaderRefuses", logsStopWhenRefused},
		{"LogsEndWhenTheContainerIsRemoved", logsEndWhenRemoved},
		{"LongLinesArriveWhole", longLinesArriveWhole},
		{"TrainerGoesOnFromACheckpoint", trainerGoesOn},
	}
	for _, claim := range claims {
		t.Run(claim.name, func(t *testing.T) {
			t.Parallel()
			claim.check(newBench(t, open))
		})
	}
}
