package demo

// story is what happens, in the order in which it is told.
func (s *stage) story() []*step {
	spot := &step{title: "A Spot machine is taken away, with 30 s notice.", play: s.spotNotice}
	migration := &step{title: "A machine is migrated while it runs.", play: s.liveMigration}
	pool := &step{title: "A pool of six machines runs out of work.", play: s.emptyPool}
	return []*step{
		spot,
		{title: "A machine has to reboot, some time soon.", play: s.announcedReboot},
		migration,
		{title: "A reboot is announced, and called off.", play: s.cancelledReboot},
		{title: "One event names two machines.", play: s.oneEventForTwo},
		{title: "An agent dies in the middle of its work.", after: migration, play: s.killedAgent},
		pool,
		{title: "Azure fails to delete one of the six.", after: pool, play: s.failedDeletion},
		{title: "The manager dies in the middle of its work.", after: pool, play: s.killedManager},
		{title: "Work comes in time for the last of the six.", after: pool, play: s.rescuedNode},
		{title: "Somebody else's autoscaler wants a pool to be 2 machines.", play: s.sizes},
		{title: "Sixty pods come for which there is no room, and go again.", after: spot, play: s.comeAndGo},
	}
}
