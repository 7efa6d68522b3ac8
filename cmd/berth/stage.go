package main

import (
	"time"

	"berth/wire"
)

// addStatus adds a job's status and, while the job is scheduled, its stage.
func addStatus(s *sheet, j wire.Job, now time.Time) {
	status := statusCell(j)
	s.add("status", s.screen.paint(status.tone, status.text))
	s.add("stage", stageText(j.Stage, now))
}

// stageText formats the stage of a scheduled job for people, with the age of the stage where
// the server knows it; nil gives "".
func stageText(s *wire.JobStage, now time.Time) string {
	if s == nil {
		return ""
	}
	text := oneLine(s.String())
	if s.Since != nil {
		text += ", for " + span(now.Sub(*s.Since))
	}
	return text
}

// briefStage is the time after the placement in which wait leaves out the stages that nearly
// every job passes in a moment.
const briefStage = 5 * time.Second

// waitStage formats the stage for the line of wait, "" for a stage that is over in a moment.
func waitStage(j wire.Job, now time.Time) string {
	s := j.Stage
	if s == nil || !s.Name.Reported() && (j.ScheduledAt == nil || now.Sub(*j.ScheduledAt) < briefStage) {
		return ""
	}
	return oneLine(s.String())
}

// stageOf returns the stage that a job's machines report, the zero value if they report none.
func stageOf(j wire.Job) wire.Stage {
	if j.Stage == nil || !j.Stage.Name.Reported() {
		return wire.Stage{}
	}
	return j.Stage.Stage
}

// stagePercent returns the completed share of a stage, -1 if it is not known.
func stagePercent(s wire.Stage) int {
	if s.Percent == nil {
		return -1
	}
	return *s.Percent
}
