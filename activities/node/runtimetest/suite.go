package runtimetest

import "testing"

// Suite checks every guarantee of node.Runtime on the engine that open connects to. The
// subtests run in parallel, each with a connection of its own.
func Suite(t *testing.T, open func(t *testing.T) Harness) {
	claims := []struct {
		name  string
		check func(b *bench)
	}{
		// Engine, images.
		{"InfoDescribesTheMachine", infoDescribesTheMachine},
		{"ImageThatIsHereNeedsNoRegistry", imageThatIsHereNeedsNoRegistry},
		{"MissingImageIsNotFound", missingImageIsNotFound},
		{"CheckedImageErrorsArePulls", checkedImageErrorsArePulls},
		{"ImageThatIsHereHasASize", imageThatIsHereHasASize},
		{"MissingImageIsNotRemoved", missingImageIsNotRemoved},
		{"UnreachableRegistryIsUnavailable", unreachableRegistryIsUnavailable},

		// Create, find, remove.
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

		// Start, wait, the container's surroundings.
		{"ExitCodesArrive", exitCodesArrive},
		{"StartRunsOnce", startRunsOnce},
		{"WaitBeforeStartSeesTheExit", waitBeforeStartSeesTheExit},
		{"WaitEndsWhenTheContainerIsRemoved", waitEndsWhenRemoved},
		{"WaitEndsWithItsContext", waitEndsWithItsContext},
		{"MissingExecutableIsBadCommand", missingExecutableIsBadCommand},
		{"EntrypointAndCommandReplaceTheImages", entrypointAndCommand},
		{"EnvironmentAndFolderArrive", environmentAndFolder},
		{"MountsAreSharedAsAsked", mountsAreShared},
		{"UserOfTheSpecRuns", userOfTheSpecRuns},
		{"AccountsOfAnImageAreRead", accountsOfAnImage},
		{"FoldersAreGivenToTheUser", foldersAreGiven},
		{"WhatAContainerLeftCanBeCopiedOut", copiedOut},
		{"GPUVariableFollowsTheReservation", gpuVariableFollowsReservation},

		// Further commands in a running container.
		{"ExecRunsACommand", execRunsACommand},
		{"ExecHasATerminal", execHasATerminal},
		{"ExecIsSignaled", execIsSignaled},
		{"ExecEndsWithItsContainer", execEndsWithItsContainer},

		// Networks.
		{"NetworkIsMadeOnceAndListed", networkIsMadeOnce},
		{"NetworkWithAContainerStays", networkWithAContainerStays},
		{"NetworkOfNobodyIsRefused", networkOfNobody},

		// Stops, signals, limits.
		{"StopLetsTheProcessFinish", stopLetsTheProcessFinish},
		{"StopKillsAfterGrace", stopKillsAfterGrace},
		{"StopOfAnythingStoppedIsDone", stopOfAnythingStopped},
		{"SignalReachesTheProcess", signalReachesTheProcess},
		{"MemoryLimitIsFlagged", memoryLimitIsFlagged},
		{"ChildLostToTheMemoryLimitIsFlagged", childLostIsFlagged},

		// Logs, and a job that uses all of this.
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
