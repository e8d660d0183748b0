package demo

// story returns the steps in the order of printing.
func (s *stage) story() []*step {
	spot := &step{title: "A Spot machine is evicted with 30 s notice", play: s.spotNotice}
	migration := &step{title: "A machine is live-migrated", play: s.liveMigration}
	pool := &step{title: "A pool of six machines becomes idle", play: s.emptyPool}
	return []*step{
		spot,
		{title: "A machine reboots within 15 minutes", play: s.announcedReboot},
		migration,
		{title: "A reboot is announced and cancelled", play: s.cancelledReboot},
		{title: "One event affects two machines", play: s.oneEventForTwo},
		{title: "An agent is killed during a drain", after: migration, play: s.killedAgent},
		pool,
		{title: "Azure fails to delete one of the six machines", after: pool, play: s.failedDeletion},
		{title: "The manager is killed during a drain", after: pool, play: s.killedManager},
		{title: "A build starts in time on the last of the six", after: pool, play: s.rescuedNode},
		{title: "Another autoscaler scales a cloudpool to 2 machines", play: s.sizes},
		{title: "Sixty unschedulable pods scale a group up, and later down", after: spot, play: s.comeAndGo},
	}
}
