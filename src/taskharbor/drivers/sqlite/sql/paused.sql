SELECT queue FROM paused
