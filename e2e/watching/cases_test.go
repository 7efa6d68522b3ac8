package watching_test

import "time"

// alertCase is a fault with which an alert fires, and a state close to it in which the alert is
// silent. Both change a healthy cluster.
type alertCase struct {
	fires   series
	labels  map[string]string // of the alert, in addition to its rule
	summary string            // of the alert
	silent  series
	at      time.Duration // of both looks; 0: half an hour after the first sample
}

// healthy are two replicas, a and b, of which a leads, and a few busy machines.
var healthy = series{
	`berth_build_info{instance="a",version="1"}`:                                                 "1",
	`berth_build_info{instance="b",version="1"}`:                                                 "1",
	`berth_dependency_up{instance="a",dependency="postgres"}`:                                    "1",
	`berth_dependency_up{instance="a",dependency="temporal"}`:                                    "1",
	`berth_dependency_up{instance="a",dependency="object_store"}`:                                "1",
	`berth_dependency_up{instance="b",dependency="postgres"}`:                                    "1",
	`berth_dependency_up{instance="b",dependency="temporal"}`:                                    "1",
	`berth_dependency_up{instance="b",dependency="object_store"}`:                                "1",
	`berth_leader_present{instance="a"}`:                                                         "1",
	`berth_leader_present{instance="b"}`:                                                         "1",
	`berth_scheduler_leader{instance="a"}`:                                                       "1",
	`berth_scheduler_leader{instance="b"}`:                                                       "0",
	`berth_scheduler_feed_lag_seconds{instance="a"}`:                                             "0.1",
	`berth_scheduler_drift_rows_total{instance="a"}`:                                             "0",
	`berth_scheduler_placements_total{instance="a"}`:                                             "0+30x300",
	`berth_scheduler_placements_total{instance="b"}`:                                             "0",
	`berth_scheduler_verdicts_frozen{instance="a"}`:                                              "0",
	`berth_scheduler_marked_machines{instance="a"}`:                                              "0",
	`berth_scheduler_maintenance_waiting_machines{instance="a"}`:                                 "0",
	`berth_waiting_jobs{instance="a",reason="ready"}`:                                            "1",
	`berth_waiting_jobs{instance="a",reason="no_room"}`:                                          "90",
	`berth_waiting_jobs{instance="a",reason="quota_budget"}`:                                     "0",
	`berth_machines{instance="a",state="ready"}`:                                                 "9",
	`berth_machines{instance="a",state="draining"}`:                                              "1",
	`berth_machines{instance="a",state="suspect"}`:                                               "0",
	`berth_machines{instance="a",state="lost"}`:                                                  "0",
	`berth_machines_silent{instance="a"}`:                                                        "0",
	`berth_machine_renewals_overdue{instance="a"}`:                                               "0",
	`berth_waiting_jobs_age_seconds{instance="a"}`:                                               "3",
	`berth_waiting_jobs_age_seconds{instance="b"}`:                                               "45",
	`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="reserved"}`:                    "10",
	`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="settled"}`:                     "60",
	`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="warn"}`:                        "80",
	`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="stop_new"}`:                    "90",
	`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="limit"}`:                       "100",
	`berth_cloud_spend_dollars{instance="a",tenant="speech",kind="reserved"}`:                    "500", // without a limit
	`berth_cloud_spend_dollars{instance="a",tenant="speech",kind="settled"}`:                     "9000",
	`berth_cloud_launch_state_seconds{instance="a",state="serving"}`:                             "864000",
	`berth_cloud_launch_state_seconds{instance="a",state="unresolved"}`:                          "0",
	`berth_cloud_launch_state_seconds{instance="a",state="terminating"}`:                         "120",
	`berth_cloud_breakers_open{instance="a",scope="offering"}`:                                   "3",
	`berth_cloud_breakers_lasting{instance="a",scope="provider"}`:                                "0",
	`berth_cloud_breakers_lasting{instance="a",scope="pool"}`:                                    "0",
	`berth_cloud_sweeps_total{instance="a",provider="lab",result="done"}`:                        "0+1x300",
	`berth_cloud_sweeps_total{instance="a",provider="lab",result="failed"}`:                      "0",
	`berth_cloud_sweeps_total{instance="b",provider="lab",result="done"}`:                        "0",
	`berth_cloud_sweeps_total{instance="b",provider="lab",result="failed"}`:                      "0",
	`berth_machines_engine_silent{instance="a"}`:                                                 "0",
	`berth_machine_disk_free_ratio{instance="a",machine="m1"}`:                                   "0.06",
	`berth_gpus{instance="a",model="A100",kind="total"}`:                                         "8",
	`berth_gpus{instance="a",model="A100",kind="unhealthy"}`:                                     "0",
	`berth_object_store_free_ratio{instance="a"}`:                                                "0.5",
	`berth_tls_certificate_end_seconds{instance="a"}`:                                            "7776000", // 90 days after the first sample
	`berth_notifications_overdue_seconds{instance="a"}`:                                          "2",
	`berth_webhooks_overdue_seconds{instance="a"}`:                                               "2",
	`berth_http_wrong_tokens_total{instance="a",caller="user",status="429"}`:                     "0",
	`berth_http_request_seconds_count{instance="a",method="POST",route="/v1/jobs",status="201"}`: "0+600x300",
	`berth_http_request_seconds_count{instance="a",method="POST",route="/v1/jobs",status="422"}`: "0+100x300",
	`berth_dependency_limit{instance="a",dependency="temporal"}`:                                 "8",
	`berth_dependency_queued{instance="a",dependency="temporal",class="start"}`:                  "0 5 0 0 9 0x300",
	`berth_dependency_queued{instance="a",dependency="postgres",class="start"}`:                  "3",
	`berth_admission_unsettled{instance="a"}`:                                                    "4",
	`berth_admission_paused{instance="a"}`:                                                       "0",
}

// cases has the cases of each alert.
var cases = map[string]alertCase{
	"BerthDown": {
		fires:   gone(healthy),
		summary: "No berthd answers Prometheus.",
		silent:  series{`berth_build_info{instance="a",version="1"}`: ""}, // the other replica answers
	},
	"BerthDatabaseDown": {
		fires: series{`berth_dependency_up{instance="a",dependency="postgres"}`: "0",
			`berth_dependency_up{instance="b",dependency="postgres"}`:                                    "0",
			`berth_http_request_seconds_count{instance="a",method="POST",route="/v1/jobs",status="503"}`: "0+600x300"},
		summary: "PostgreSQL answers no berthd.",
		// A failover of half a minute.
		silent: series{`berth_dependency_up{instance="a",dependency="postgres"}`: "1x29 0 1x300",
			`berth_dependency_up{instance="b",dependency="postgres"}`: "1x29 0 1x300"},
	},
	"BerthTemporalDown": {
		fires: series{`berth_dependency_up{instance="a",dependency="temporal"}`: "0",
			`berth_dependency_up{instance="b",dependency="temporal"}`: "0"},
		summary: "Temporal answers no berthd.",
		silent: series{`berth_dependency_up{instance="a",dependency="temporal"}`: "1x28 0 0 1x300",
			`berth_dependency_up{instance="b",dependency="temporal"}`: "1x28 0 0 1x300"},
	},
	"BerthObjectStoreDown": {
		fires: series{`berth_dependency_up{instance="a",dependency="object_store"}`: "0",
			`berth_dependency_up{instance="b",dependency="object_store"}`: "0"},
		summary: "The object store answers no berthd.",
		silent:  series{`berth_dependency_up{instance="b",dependency="object_store"}`: "1x27 0 0 0 1x300"},
	},
	"BerthDependencyUnreachable": {
		fires:   series{`berth_dependency_up{instance="b",dependency="temporal"}`: "0"},
		labels:  map[string]string{"instance": "b", "dependency": "temporal"},
		summary: "b cannot reach temporal, which other replicas reach.",
		silent:  series{`berth_dependency_up{instance="b",dependency="temporal"}`: "1x26 0 0 0 0 1x300"},
	},
	"BerthNoLeader": {
		fires: series{`berth_leader_present{instance="a"}`: "0", `berth_leader_present{instance="b"}`: "0",
			`berth_scheduler_leader{instance="a"}`: "0", `berth_scheduler_placements_total{instance="a"}`: "0",
			`berth_waiting_jobs{instance="a",reason="ready"}`: "0"},
		summary: "No process has the lead.",
		// A leader without the API: no process exports that it leads. A scrape fell into a takeover.
		silent: series{`berth_scheduler_leader{instance="a"}`: "0", `berth_leader_present{instance="a"}`: "1x29 0 1x300",
			`berth_leader_present{instance="b"}`: "1x29 0 1x300"},
	},
	"BerthFeedLags": {
		fires:   series{`berth_scheduler_feed_lag_seconds{instance="a"}`: "90"},
		summary: "The leader plans with data that is 1m 30s old.",
		silent:  series{`berth_scheduler_feed_lag_seconds{instance="a"}`: "1x28 6 4 6 1x300"},
	},
	"BerthMirrorDrifts": {
		fires:   series{`berth_scheduler_drift_rows_total{instance="a"}`: "0x10 3x300"},
		summary: "The leader had missed 3 rows within an hour.",
		silent:  series{`berth_scheduler_drift_rows_total{instance="a"}`: "3"}, // hours ago
	},
	"BerthSubmitsFail": {
		fires: series{
			`berth_http_request_seconds_count{instance="a",method="POST",route="/v1/jobs",status="503"}`: "0+100x300"},
		summary: "12.5% of the submits fail with a status of 500 or above.",
		// Single failures, and many refusals that are the caller's fault.
		silent: series{
			`berth_http_request_seconds_count{instance="a",method="POST",route="/v1/jobs",status="503"}`: "0+10x300",
			`berth_http_request_seconds_count{instance="a",method="POST",route="/v1/jobs",status="429"}`: "0+9000x300"},
	},
	"BerthCertificateEndsSoon": {
		fires:   series{`berth_tls_certificate_end_seconds{instance="a"}`: "867720"},
		labels:  map[string]string{"instance": "a"},
		summary: "The certificate of a ends in 10d 0h 1m 0s.",
		silent:  series{`berth_tls_certificate_end_seconds{instance="a"}`: "1296000"},
		at:      61 * time.Minute,
	},
	"BerthCertificateEnds": {
		fires:   series{`berth_tls_certificate_end_seconds{instance="a"}`: "93660"},
		labels:  map[string]string{"instance": "a"},
		summary: "The certificate of a ends in 1d 1h 0m 0s.",
		silent:  series{`berth_tls_certificate_end_seconds{instance="a"}`: "1296000"},
		at:      61 * time.Minute,
	},
	"BerthBackupOld": {
		fires:   series{`berth_backup_age_seconds{instance="a"}`: "180000+60x300"},
		summary: "The newest complete backup began 2d 3h 1m 0s ago.",
		silent:  series{`berth_backup_age_seconds{instance="a"}`: "180000+60x30 60+60x300"}, // the next backup is complete
		at:      61 * time.Minute,
	},
	"BerthQueueStuck": {
		fires: series{`berth_scheduler_placements_total{instance="a"}`: "100",
			`berth_waiting_jobs{instance="a",reason="ready"}`: "7"},
		summary: "7 jobs could start on free machines, and nothing was placed for ten minutes.",
		// An operator has paused starts.
		silent: series{`berth_scheduler_placements_total{instance="a"}`: "100",
			`berth_waiting_jobs{instance="a",reason="ready"}`: "0x10 1x300", `berth_admission_paused{instance="a"}`: "0x9 1x300"},
	},
	"BerthBudgetSpent": {
		fires:   series{`berth_waiting_jobs{instance="a",reason="quota_budget"}`: "12"},
		summary: "12 jobs wait because the budget of their tenant is spent.",
		silent:  series{`berth_waiting_jobs{instance="a",reason="quota_budget"}`: "0x25 1x300"},
	},
	"BerthQueueUnseen": {
		fires: series{`berth_waiting_jobs{instance="a",reason="ready"}`: "", `berth_waiting_jobs{instance="a",reason="no_room"}`: "",
			`berth_waiting_jobs{instance="a",reason="quota_budget"}`: "",
			`berth_waiting_jobs_age_seconds{instance="a"}`:           "", `berth_waiting_jobs_age_seconds{instance="b"}`: ""},
		summary: "For ten minutes no replica knows why jobs wait.",
		// Each plan takes a minute and a half, so each scrape has numbers of two or three minutes ago.
		silent: series{`berth_waiting_jobs_age_seconds{instance="a"}`: "120 180 120 180 120 180x300"},
	},
	"BerthMachinesSilent": {
		fires: series{`berth_machines{instance="a",state="suspect"}`: "1",
			`berth_machines{instance="a",state="lost"}`: "2", `berth_machines_silent{instance="a"}`: "3"},
		summary: "3 machines are silent.",
		// A machine reboots, and two that are drained are switched off.
		silent: series{`berth_machines_silent{instance="a"}`: "0x24 1x3 0x300",
			`berth_machines{instance="a",state="suspect"}`: "0x24 1x3 0x300", `berth_machines{instance="a",state="lost"}`: "2"},
	},
	"BerthVerdictsFrozen": {
		fires:   series{`berth_scheduler_verdicts_frozen{instance="a"}`: "1"},
		summary: "More than a third of the machines is silent, so none is declared lost.",
		silent:  series{`berth_scheduler_verdicts_frozen{instance="a"}`: "0x29 1 0x300"},
	},
	"BerthMachineMarked": {
		fires:   series{`berth_scheduler_marked_machines{instance="a"}`: "2"},
		summary: "2 machines get no work until an operator acts.",
		silent:  series{`berth_scheduler_marked_machines{instance="a"}`: "0x27 1 0x300"},
	},
	"BerthEngineSilent": {
		fires:   series{`berth_machines_engine_silent{instance="a"}`: "1"},
		summary: "The container engine of 1 machines does not answer.",
		silent:  series{`berth_machines_engine_silent{instance="a"}`: "0x25 1x3 0x300"}, // an upgrade of the engine
	},
	"BerthMachineDiskFull": {
		fires: series{`berth_machine_disk_free_ratio{instance="a",machine="m2"}`: "0.012",
			`berth_machine_disk_free_ratio{instance="b",machine="m2"}`: "0.012"},
		labels:  map[string]string{"machine": "m2"},
		summary: "1.2% of the disk of m2 is free.",
		silent:  series{`berth_machine_disk_free_ratio{instance="a",machine="m2"}`: "0.3x26 0.03 0.3x300"}, // relieved
	},
	"BerthGPUsUnhealthy": {
		fires:   series{`berth_gpus{instance="a",model="A100",kind="unhealthy"}`: "2"},
		labels:  map[string]string{"model": "A100"},
		summary: "2 GPUs of model A100 are out of use.",
		silent:  series{`berth_gpus{instance="a",model="A100",kind="unhealthy"}`: "0x20 1x9 0x300"},
	},
	"BerthMaintenanceLate": {
		fires:   series{`berth_scheduler_maintenance_waiting_machines{instance="a"}`: "3"},
		summary: "3 machines have not returned from maintenance.",
		silent:  series{`berth_scheduler_maintenance_waiting_machines{instance="a"}`: "0x10 3x300"}, // they boot
	},
	"BerthRenewalsOverdue": {
		fires:   series{`berth_machine_renewals_overdue{instance="a"}`: "2"},
		summary: "The agents of 2 machines do not renew their credentials.",
		// Machines that were off renew within minutes. Others still are off.
		silent: series{`berth_machine_renewals_overdue{instance="a"}`: "0x24 5x3 0x300",
			`berth_machine_credentials{instance="a",state="late"}`: "4"},
	},
	"BerthCloudSpendNearsLimit": {
		fires:   series{`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="settled"}`: "74"},
		labels:  map[string]string{"tenant": "vision"},
		summary: "Tenant vision has spent or reserved 84% of its limit for clouds.",
		// A policy that warns later.
		silent: series{`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="settled"}`: "74",
			`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="warn"}`: "85"},
	},
	"BerthCloudSpendExceeds": {
		fires: series{`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="settled"}`: "0x9 88x300",
			`berth_cloud_spend_dollars{instance="b",tenant="vision",kind="settled"}`: "0x9 88x300"},
		labels:  map[string]string{"tenant": "vision"},
		summary: "Tenant vision has spent or reserved 98% of its limit, more than launches may.",
		// A period begins before the level has been exceeded for five minutes.
		silent: series{`berth_cloud_spend_dollars{instance="a",tenant="vision",kind="settled"}`: "60x25 82x3 0x300"},
	},
	"BerthLaunchUnresolved": {
		fires:   series{`berth_cloud_launch_state_seconds{instance="a",state="unresolved"}`: "0x5 0+60x300"},
		summary: "For 24m 0s it is unknown whether a launch has created an instance.",
		silent:  series{`berth_cloud_launch_state_seconds{instance="a",state="unresolved"}`: "0x20 0+60x7 0x300"}, // found
	},
	"BerthInstanceDoesNotEnd": {
		fires:   series{`berth_cloud_launch_state_seconds{instance="a",state="terminating"}`: "1800+60x300"},
		summary: "A cloud has been asked to terminate an instance for 1h 0m 0s, and has not done so.",
		// Machines end all the time, and bare metal takes a while to switch off.
		silent: series{`berth_cloud_launches{instance="a",state="terminating"}`: "9",
			`berth_cloud_launch_state_seconds{instance="a",state="terminating"}`: "900 600 1500 1200 1700 900x300"},
	},
	"BerthCloudRefuses": {
		fires: series{`berth_cloud_breakers_open{instance="a",scope="provider"}`: "1",
			`berth_cloud_breakers_lasting{instance="a",scope="provider"}`: "1"},
		labels:  map[string]string{"scope": "provider"},
		summary: "1 scopes of kind provider are refused by their cloud until an admin corrects the cause.",
		silent:  series{`berth_cloud_breakers_open{instance="a",scope="provider"}`: "2"}, // a quota of the cloud
	},
	"BerthCloudNotSwept": {
		// The second provider is swept.
		fires: series{`berth_cloud_sweeps_total{instance="a",provider="lab",result="done"}`: "0+1x30 30x300",
			`berth_cloud_sweeps_total{instance="a",provider="lab",result="failed"}`: "0x30 0+0.25x300",
			`berth_cloud_sweeps_total{instance="b",provider="lab",result="failed"}`: "0x30 0+0.25x300",
			`berth_cloud_sweeps_total{instance="a",provider="ec2",result="done"}`:   "0+1x300",
			`berth_cloud_sweeps_total{instance="a",provider="ec2",result="failed"}`: "0"},
		labels:  map[string]string{"provider": "lab"},
		summary: "For an hour no berthd could sweep the provider lab.",
		// One replica lacks the program of the provider, and the cloud did not answer for 50 minutes. The leader of the
		// version before, which counts nothing, sweeps the other provider.
		silent: series{`berth_cloud_sweeps_total{instance="a",provider="lab",result="done"}`: "0+1x60 60x50 60+1x300",
			`berth_cloud_sweeps_total{instance="a",provider="lab",result="failed"}`: "0x60 0+0.25x50 12x300",
			`berth_cloud_sweeps_total{instance="b",provider="lab",result="failed"}`: "0+0.25x300",
			`berth_cloud_sweeps_total{instance="a",provider="ec2",result="done"}`:   "0",
			`berth_cloud_sweeps_total{instance="a",provider="ec2",result="failed"}`: "0"},
		at: 110 * time.Minute,
	},
	"BerthObjectStoreFull": {
		fires:   series{`berth_object_store_free_ratio{instance="a"}`: "0.034"},
		summary: "3.4% of the object store's disk is free.",
		silent:  series{`berth_object_store_free_ratio{instance="a"}`: ""}, // a bucket
	},
	"BerthWebhookBacklog": {
		fires:   series{`berth_webhooks_overdue_seconds{instance="a"}`: "0x10 0+60x300"},
		summary: "A call of a webhook is 19m 0s late.",
		silent:  series{`berth_webhooks_overdue_seconds{instance="a"}`: "240"},
	},
	"BerthNotificationBacklog": {
		fires:   series{`berth_notifications_overdue_seconds{instance="a"}`: "0x10 0+60x300"},
		summary: "A message to a notification channel is 19m 0s late.",
		silent:  series{`berth_notifications_overdue_seconds{instance="a"}`: "240"},
	},
	"BerthMailFails": {
		fires: series{`berth_notifications_total{instance="a",kind="email",result="failed"}`: "0+1x300",
			`berth_notifications_total{instance="a",kind="email",result="delivered"}`: "7"},
		summary: "The mail server has accepted no notification for half an hour, and has failed 30 of them.",
		// A wrong address of one channel is its tenant's matter: other mail arrives.
		silent: series{`berth_notifications_total{instance="a",kind="email",result="failed"}`: "0+1x300",
			`berth_notifications_total{instance="a",kind="email",result="delivered"}`: "0+1x300"},
	},
	"BerthWrongTokens": {
		fires:   series{`berth_http_wrong_tokens_total{instance="a",caller="user",status="429"}`: "0+300x300"},
		labels:  map[string]string{"caller": "user"},
		summary: "5 calls a second of a user come without a valid token.",
		silent: series{`berth_http_wrong_tokens_total{instance="a",caller="user",status="429"}`: "0+30x300",
			`berth_http_wrong_tokens_total{instance="a",caller="agent",status="401"}`: "0+300x300"},
	},
	"BerthDependencyOverloaded": {
		fires: series{`berth_dependency_limit{instance="a",dependency="temporal"}`: "2",
			`berth_dependency_queued{instance="a",dependency="temporal",class="start"}`: "40"},
		labels:  map[string]string{"instance": "a", "dependency": "temporal"},
		summary: "a makes at most 2 calls to Temporal at once, and calls wait.",
		silent:  series{`berth_dependency_limit{instance="a",dependency="temporal"}`: "2"}, // nothing waits
	},
	"BerthDatabaseCrowded": {
		fires:   series{`berth_dependency_queued{instance="a",dependency="postgres_reads",class="start"}`: "64"},
		labels:  map[string]string{"instance": "a", "dependency": "postgres_reads"},
		summary: "64 statements of a wait for a connection (postgres_reads).",
		silent:  series{`berth_dependency_queued{instance="a",dependency="postgres_reads",class="start"}`: "0x28 64 0 64 0x300"},
	},
	"BerthEndsWait": {
		fires:   series{`berth_admission_unsettled{instance="a"}`: "230"},
		summary: "230 jobs have ended and are still shown as running.",
		silent:  series{`berth_admission_unsettled{instance="a"}`: "0x29 230 0x300"},
	},
	"BerthAdmissionPaused": {
		fires:   series{`berth_admission_paused{instance="a"}`: "1"},
		summary: "An admin has paused new starts for an hour.",
		silent:  series{`berth_admission_paused{instance="a"}`: "0x5 1x300"}, // a pause for an upgrade
		at:      time.Hour,
	},
}

// gone returns samples that remove all series.
func gone(all series) series {
	none := series{}
	for metric := range all {
		none[metric] = ""
	}
	return none
}
