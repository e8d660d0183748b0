package demo

// newSteps returns the steps of the demo in the order of printing.
func (s *stage) newSteps() []*step {
	spot := &step{title: "A Spot machine is evicted with 30 s notice", run: s.runSpotNotice}
	migration := &step{title: "A machine is live-migrated", run: s.runLiveMigration}
	pool := &step{title: "A pool of six machines becomes idle", run: s.runIdlePool}
	return []*step{
		spot,
		{title: "A machine reboots within 15 minutes", run: s.runReboot},
		migration,
		{title: "A reboot is announced and cancelled", run: s.runCancelledReboot},
		{title: "One event affects two machines", run: s.runSharedEvent},
		{title: "An agent is killed during a drain", runAfter: migration, run: s.runKilledAgent},
		pool,
		{title: "Azure fails to delete one of the six machines", runAfter: pool, run: s.reportFailedDeletion},
		{title: "The manager is killed during a drain", runAfter: pool, run: s.reportKilledManager},
		{title: "A build starts in time on the last of the six", runAfter: pool, run: s.reportRescuedNode},
		{title: "Another autoscaler scales a cloudpool to 2 machines", run: s.runCloudpoolScaling},
		{title: "Sixty unschedulable pods scale a group up, and later down", runAfter: spot, run: s.runAutoscaling},
	}
}
